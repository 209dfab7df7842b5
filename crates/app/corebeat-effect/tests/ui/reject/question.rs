// An early exit, after which the second call must not have run.
fn parse(text: &str) -> Result<u32, String> {
    let mut value = 0;
    for digit in text.chars() {
        value = value * 10 + digit.to_digit(10).ok_or(format!("not a digit: {digit}"))?;
    }
    Ok(value)
}

fn add(to: &mut Vec<u32>) -> Result<usize, String> {
    for i in 0..3 {
        to.push(i);
    }
    Ok(to.len())
}

fn run(text: &str, to: &mut Vec<u32>) -> Result<u32, String> {
    let a = parse(text)?;
    let b = add(to)?;
    Ok(a + b as u32)
}

fn main() {
    let mut to = Vec::new();
    let result = run("x", &mut to);
    println!("{result:?} {to:?}");
}
