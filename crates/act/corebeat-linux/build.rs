//! Builds the library that is preloaded into programs (`preload/team.c`); `src/team.rs` embeds it.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=preload");
    let out = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("team.so");
    let mut command = cc::Build::new().warnings(false).get_compiler().to_command();
    // Without the C library, so that the file requires no version of it. libgcc has the atomics
    // that gcc calls out of line on some processors.
    command
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-fPIC",
            "-shared",
            "-nostdlib",
            "-fvisibility=hidden",
        ])
        .args(["-ftls-model=initial-exec", "-fno-stack-protector", "-g0", "-s", "-Wl,-z,lazy"])
        // Two segments instead of four: every process maps this file.
        .arg("-Wl,-z,noseparate-code")
        .args(["preload/team.c", "-lgcc", "-o"])
        .arg(&out);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the compiler failed ({status}) on preload/team.c: {command:?}"),
        Err(e) => panic!("cannot start the C compiler ({e}); install gcc, or set CC: {command:?}"),
    }
}
