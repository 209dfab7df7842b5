// Divide and conquer on the halves of a slice.
fn sort(v: &mut [i32]) {
    if v.len() < 2 {
        return;
    }
    let (left, right) = v.split_at_mut(v.len() / 2);
    sort(left);
    // The other half.
    sort(right);
    merge(v);
}

fn merge(v: &mut [i32]) {
    let half = v.len() / 2;
    let (mut i, mut j) = (0, half);
    let mut merged = Vec::with_capacity(v.len());
    while i < half || j < v.len() {
        if j == v.len() || i < half && v[i] <= v[j] {
            merged.push(v[i]);
            i += 1;
        } else {
            merged.push(v[j]);
            j += 1;
        }
    }
    v.copy_from_slice(&merged);
}

fn main() {
    let mut v: Vec<i32> = (0..40).map(|x| x * 7919 % 101).collect();
    sort(&mut v);
    println!("{v:?}");
}
