//! Tasks of LPEL that run transactions.

use corebeat_lpel::{Runtime, spawn, stream, yield_now};
use corebeat_stm::{TCell, atomically};

#[test]
fn task_that_waits_in_a_transaction_fails_alone() {
    // One worker: all tasks run on its thread.
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let sum = runtime.run(|| {
        let cell = Box::leak(Box::new(TCell::new(0u64)));
        let add = |wait: &mut dyn FnMut()| {
            atomically(|tx| {
                tx.update(cell, |n| n + 1)?;
                wait();
                Ok(())
            });
        };
        let (mut writer, mut reader) = stream::<u32>(1);
        let waits = spawn(move || add(&mut || assert_eq!(reader.next(), None)));
        let yields = spawn(move || add(&mut yield_now));
        // It runs while the others wait, if they do.
        let innocent = spawn(move || add(&mut || {}));
        innocent.join().unwrap();
        // The panic has dropped the reader.
        assert!(writer.write(1).is_err());
        for offender in [waits.join(), yields.join()] {
            let why = offender.unwrap_err().to_string();
            assert!(why.contains("wait before or after the transaction"), "{why}");
        }
        atomically(|tx| tx.read(cell))
    });
    assert_eq!(sum.unwrap(), 1);
}
