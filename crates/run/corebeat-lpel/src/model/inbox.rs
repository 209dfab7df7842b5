//! Many push, one takes.

use super::{all_noticed, check, spawn};
use crate::inbox::{Inbox, Linked};
use corebeat_sync::Arc;
use corebeat_sync::atomic::AtomicPtr;
use corebeat_sync::cell::UnsafeCell;
use std::ptr;

struct Node {
    link: AtomicPtr<Node>,
    /// Who pushed it, and its number there; written before it is pushed, read after it was taken.
    letter: UnsafeCell<(usize, usize)>,
}

// SAFETY: always the same link, for one inbox.
unsafe impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Node> {
        &self.link
    }
}

/// Two push, one of them twice, while the third takes; a node that was taken is pushed again.
#[test]
fn loom_inbox_gives_each_node_once_and_in_order() {
    check(3, || {
        let inbox = Arc::new(Inbox::new());
        let push = |inbox: &Inbox<Node>, node: *const Node, letter| {
            // SAFETY: the node is ours until it is pushed, and is not freed before it was taken.
            unsafe {
                (*node).letter.with_mut(|l| *l = letter);
                inbox.push(node);
            }
        };
        let threads = [2, 1].map(|letters| {
            let inbox = inbox.clone();
            spawn(move || {
                for n in 0..letters {
                    let node =
                        Node { link: AtomicPtr::new(ptr::null_mut()), letter: UnsafeCell::new((0, 0)) };
                    push(&inbox, Box::into_raw(Box::new(node)), (letters, n));
                }
            })
        });
        let mut got = Vec::new();
        let mut take = |again: bool| {
            for node in inbox.take() {
                // SAFETY: taken, so ours.
                let letter = unsafe { (*node).letter.with(|l| *l) };
                got.push(letter);
                if again && letter.0 == 1 {
                    push(&inbox, node, (3, 0));
                } else {
                    // SAFETY: made from a box, and in no inbox.
                    drop(unsafe { Box::from_raw(node.cast_mut()) });
                }
            }
        };
        take(true);
        take(false);
        for thread in threads {
            thread.join().unwrap();
        }
        take(false);
        assert!(inbox.is_empty());
        let of = |who| got.iter().filter(|l| l.0 == who).map(|l| l.1).collect::<Vec<_>>();
        assert_eq!((of(1), of(2)), (vec![0], vec![0, 1]));
    });
}

#[test]
fn loom_inbox_faults_are_noticed() {
    let model = "inbox::loom_inbox_gives_each_node_once_and_in_order";
    all_noticed(&[(model, "release inbox.rs"), (model, "acquire inbox.rs")]);
}
