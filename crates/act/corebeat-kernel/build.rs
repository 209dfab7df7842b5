//! Compiles the programs for the kernel (with the feature `bpf`), and the decisions of the
//! scheduler for the tests.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed=twin");
    println!("cargo::rerun-if-env-changed=CLANG");
    cc::Build::new().file("twin/twin.c").include("bpf").std("gnu11").compile("corebeat_twin");
    // The linker of tests takes what it needs; other crates use nothing of this archive.
    if env::var_os("CARGO_FEATURE_BPF").is_some() {
        ["corebeat", "table"].into_iter().for_each(compile);
    }
}

fn compile(name: &str) {
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let object = Path::new(&out).join(format!("{name}.bpf.o"));
    let headers = env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys sets its include folder");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let mut command = Command::new(&clang);
    command
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-Wall", "-Werror"])
        .args(["-Wno-unused-function", "-Wno-missing-declarations", "-D__TARGET_ARCH_x86"])
        .arg("-I")
        .arg(headers)
        .arg("-c")
        .arg(format!("bpf/{name}.bpf.c"))
        .arg("-o")
        .arg(&object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{} failed ({status}): {command:?}", clang.display()),
        Err(e) => panic!(
            "the feature bpf of corebeat-kernel needs clang, and {} cannot be started ({e}): \
             apt-get install clang, or set CLANG",
            clang.display()
        ),
    }
}
