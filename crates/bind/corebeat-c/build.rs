//! Keeps the library loaded after `dlclose`: threads that end later run its destructors of
//! thread-specific data (`pthread_key_create`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
