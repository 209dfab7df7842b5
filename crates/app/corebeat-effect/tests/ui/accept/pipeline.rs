// Loops with an independent stage before one in order: exits, panics and variables as before.
use std::io::Write;

fn cost(n: u64) -> u64 {
    let mut sum = 0;
    for i in [n, n / 2, n / 4, n / 6, 1] {
        sum += i;
    }
    sum
}

fn words(text: &str) -> Vec<u64> {
    let mut all = Vec::new();
    for byte in text.bytes() {
        all.push(cost(byte.into()));
    }
    all
}

// The rest has a variable of its own in each iteration, and one that it carries.
fn report(lines: &[String]) -> u64 {
    let mut total = 0;
    for (i, line) in lines.iter().enumerate() {
        let list = words(line);
        // The longest one counts.
        let longest = list.iter().max();
        if list.is_empty() {
            continue;
        }
        println!("{i} {line}: {list:?} {longest:?}");
        total = total * 31 % 1009 + list[0];
        if total > 990 {
            break;
        }
    }
    total
}

fn checked(values: &[u64]) -> Result<Vec<u64>, String> {
    let mut all = Vec::new();
    for value in values.iter().copied() {
        let mut found = cost(value);
        found += value;
        let limit: u64 = 1000;
        all.push(under(found, limit)?);
    }
    Ok(all)
}

fn under(n: u64, limit: u64) -> Result<u64, String> {
    println!("under {n}");
    if n < limit { Ok(n) } else { Err(format!("{n} is too large")) }
}

fn first_even(values: &[u64]) -> Option<u64> {
    let mut tries = 0;
    for n in 0..5usize {
        let x = cost(values[n]); /* the index may be out of bounds */
        println!("try {n}");
        tries = half(x)?;
    }
    Some(tries)
}

fn half(n: u64) -> Option<u64> {
    if n % 2 == 0 { Some(n / 2) } else { None }
}

// The iterator and its items are values of the loop.
fn numbers(list: Vec<(String, u64)>) -> Vec<String> {
    let mut all = Vec::new();
    for (name, mut n) in list {
        let c = cost(n);
        n += 1;
        all.push(format!("{name} {n} {c}"));
    }
    all
}

// The standard library has loops over the parts of a text, which end.
fn parse(line: &str) -> String {
    let mut word = String::new();
    for part in line.split(' ') {
        for letter in part.chars() {
            word.push(letter.to_ascii_uppercase());
        }
    }
    word
}

fn capitals(text: &str, out: &mut std::io::Stdout) -> std::io::Result<()> {
    for line in text.lines() {
        let word = parse(line);
        writeln!(out, "{word}")?;
    }
    Ok(())
}

fn squares(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..n % 20 {
        sum += i * i;
    }
    sum
}

// The loop adds up, and it writes. All items are reached, also those with a large number.
fn total(values: &[u64]) -> u64 {
    let mut total = 0;
    for n in values {
        let x = squares(*n);
        println!("add {x}");
        total += x;
    }
    total
}

fn main() {
    capitals("one two\n\nthree", &mut std::io::stdout()).unwrap();
    println!("{}", total(&[7, 8, 9]));
    let lines: Vec<String> = ["one", "", "three", "seven", "eight", "x"].map(String::from).into();
    println!("{}", report(&lines));
    println!("{:?}", checked(&[1, 2, 3, 17]));
    println!("{:?}", checked(&[1, 2, 1900, 3, 4, 5]));
    println!("{:?}", first_even(&[1, 4, 7]));
    println!("{:?}", numbers(vec![("a".into(), 5), ("b".into(), 6)]));
    println!("{:?}", first_even(&[1]));
}
