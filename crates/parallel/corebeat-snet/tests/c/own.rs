//! A box in C, written in Rust without dependencies.

#![allow(dead_code, non_upper_case_globals)]

#[repr(C)]
pub struct Link {
    version: u32,
    call: *const (),
}

#[no_mangle]
pub static mut corebeat_snet_api: Link = Link { version: 1, call: std::ptr::null() };

#[no_mangle]
pub extern "C" fn own(hnd: *mut (), _n: i32) -> *mut () {
    hnd
}
