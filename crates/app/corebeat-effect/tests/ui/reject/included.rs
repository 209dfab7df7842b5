// The file of `include!` may be in other crates, and a build script may write it anew.
include!("included/file.in");

fn main() {
    println!("{}", both(&[1], &[2]));
}
