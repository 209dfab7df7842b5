// Other reasons: a variable that the rest changes, code that leaves the function, a function whose
// type hides its result, a list with a destructor of its own, and a search that may not end.
use std::cell::RefCell;

type Sum = Result<u64, String>;

fn cost(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..n % 20 {
        sum += i * i;
    }
    sum
}

fn carried(values: &[u64]) -> u64 {
    let mut total = 0;
    for n in values {
        let x = cost(*n + total);
        println!("{x}");
        total += x;
    }
    total
}

fn changed(values: &mut [u64], by: &[u64]) {
    for n in by {
        let x = cost(values[0] + n);
        values[0] = x;
        println!("{x}");
    }
}

fn first(values: &[u64]) -> u64 {
    for n in values {
        let x = cost(*n);
        println!("{x}");
        if x > 10 {
            return x;
        }
    }
    0
}

fn hidden(values: &[u64]) -> Sum {
    let mut all = Vec::new();
    for n in values {
        let x = cost(*n);
        println!("{x}");
        all.push(u64::try_from(x as i64 - 5).map_err(|e| e.to_string())?);
    }
    Ok(all.len() as u64)
}

fn outer(values: &[u64]) {
    'outer: for round in 0..3u64 {
        for n in values {
            let x = cost(*n + round);
            println!("{x}");
            if x > 20 {
                continue 'outer;
            }
        }
    }
}

fn borrowed(values: &RefCell<Vec<u64>>) {
    for n in values.borrow().iter() {
        let x = cost(*n);
        println!("{x}");
    }
}

// The standard library searches without an end for the number behind the last one.
fn endless(values: &[u64]) {
    for n in values {
        let x = (*n..).find(|k| cost(*k) == 0 && *n < 100).unwrap_or(0);
        println!("{x}");
        if *n == 6 {
            break;
        }
    }
}

fn main() {
    let mut values = vec![4, 5, 6];
    println!("{}", carried(&values));
    changed(&mut values, &[1, 2]);
    println!("{} {:?}", first(&values), hidden(&values));
    outer(&values);
    endless(&values);
    borrowed(&RefCell::new(values));
}
