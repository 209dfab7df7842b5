//! Model of the inbox: several pushers, one taker.

use super::{assert_detected, check, spawn};
use crate::inbox::{Inbox, Linked};
use corebeat_sync::Arc;
use corebeat_sync::atomic::AtomicPtr;
use corebeat_sync::cell::UnsafeCell;
use std::ptr;

struct Node {
    link: AtomicPtr<Node>,
    /// Pusher, and number at the pusher. Written before the push, read after the take.
    content: UnsafeCell<(usize, usize)>,
}

// SAFETY: `link` always returns the same link, which only one inbox uses.
unsafe impl Linked for Node {
    fn link(&self) -> &AtomicPtr<Node> {
        &self.link
    }
}

/// Two threads push, one of them twice, while a third one takes. A taken node is pushed again.
#[test]
fn loom_inbox_returns_each_node_once_and_in_order() {
    check(3, || {
        let inbox = Arc::new(Inbox::new());
        let push = |inbox: &Inbox<Node>, node: *const Node, content| {
            // SAFETY: this thread owns the node until the push. The node is freed after its take.
            unsafe {
                (*node).content.with_mut(|l| *l = content);
                inbox.push(node);
            }
        };
        let threads = [2, 1].map(|nodes| {
            let inbox = inbox.clone();
            spawn(move || {
                for n in 0..nodes {
                    let node = Node {
                        link: AtomicPtr::new(ptr::null_mut()),
                        content: UnsafeCell::new((0, 0)),
                    };
                    push(&inbox, Box::into_raw(Box::new(node)), (nodes, n));
                }
            })
        });
        let mut got = Vec::new();
        let mut take = |again: bool| {
            for node in inbox.take() {
                // SAFETY: the taker owns the node.
                let content = unsafe { (*node).content.with(|l| *l) };
                got.push(content);
                if again && content.0 == 1 {
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
        let of = |pusher| got.iter().filter(|l| l.0 == pusher).map(|l| l.1).collect::<Vec<_>>();
        assert_eq!((of(1), of(2)), (vec![0], vec![0, 1]));
    });
}

#[test]
fn loom_inbox_faults_are_detected() {
    let model = "inbox::loom_inbox_returns_each_node_once_and_in_order";
    assert_detected(&[(model, "release inbox.rs"), (model, "acquire inbox.rs")]);
}
