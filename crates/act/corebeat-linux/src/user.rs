//! Names of users.
//!
//! The C library looks the names up, in the sources that `/etc/nsswitch.conf` lists: `ps` and `ls`
//! show the same names. A static build reads fewer sources (with musl only `/etc/passwd`; with
//! glibc those whose shared libraries match), and a directory server may answer slowly or not at
//! all. A name that cannot be found is `None`.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr;

/// Greatest size of the texts of an entry, in bytes.
const ENTRY_MAX: usize = 1 << 20;

/// Returns the name of a user.
pub fn user_name(uid: u32) -> Option<String> {
    // SAFETY: `entry` passes pointers to an entry, to a buffer with its length, and to a result.
    entry(|user, text, len, found| unsafe { libc::getpwuid_r(uid, user, text, len, found) })
        .map(|(_, name)| name)
}

/// Returns the number of a user.
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: as in `user_name`; `name` ends with a null byte.
    entry(|user, text, len, found| unsafe {
        libc::getpwnam_r(name.as_ptr(), user, text, len, found)
    })
    .map(|(uid, _)| uid)
}

/// Returns number and name of the user that a function of the C library finds.
fn entry(
    find: impl Fn(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> Option<(u32, String)> {
    let mut text = vec![0; 1024];
    loop {
        let (mut user, mut found) = (MaybeUninit::uninit(), ptr::null_mut());
        match find(user.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut found) {
            libc::ERANGE if text.len() < ENTRY_MAX => text.resize(text.len() * 2, 0),
            0 if !found.is_null() => {
                // SAFETY: the function succeeded, so it wrote the entry.
                let user = unsafe { user.assume_init() };
                // SAFETY: the name of an entry is a string that ends with a null byte, in `text`.
                let name = unsafe { CStr::from_ptr(user.pw_name) };
                return Some((user.pw_uid, name.to_string_lossy().into_owned()));
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_has_a_name_and_a_number() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(user_id("root"), Some(0));
        // No system gives these away.
        assert_eq!(user_name(u32::MAX - 7), None);
        assert_eq!((user_id("no such user"), user_id("a\0b")), (None, None));
    }
}
