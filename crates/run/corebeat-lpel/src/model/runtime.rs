use super::check;
use crate::{Runtime, Task, spawn, stream};

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).pin(false).spin(std::time::Duration::ZERO).build().unwrap()
}

#[test]
fn loom_one_worker_runs_a_task() {
    check(std::env::var("P").map_or(2, |p| p.parse().unwrap()), || {
        let rt = runtime(1);
        assert_eq!(rt.run(|| 7).unwrap(), 7);
    });
}

#[test]
fn loom_two_workers_pass_items() {
    check(std::env::var("P").map_or(2, |p| p.parse().unwrap()), || {
        let rt = runtime(2);
        let sum = rt.run(|| {
            let (mut w, mut r) = stream(1);
            Task::new()
                .worker(1)
                .spawn(move || {
                    w.write(1).unwrap();
                    w.write(2).unwrap();
                })
                .unwrap();
            let mut sum = 0;
            while let Some(n) = r.read() {
                sum += n;
            }
            sum
        });
        assert_eq!(sum.unwrap(), 3);
    });
}
