use super::*;

#[test]
fn share_excludes_a_main_thread_that_only_joins() {
    let mut p = sample::program();
    sample::thread(&mut p, 0.0, 1.0, 0.0);
    sample::thread(&mut p, 0.8, 0.2, 0.0);
    assert_eq!(share(&p, |s| s.lock), Some(0.2));
    p.threads[0].counters.voluntary_switches = Some(3);
    assert_eq!(share(&p, |s| s.lock), Some(0.6));
}

#[test]
fn share_tolerates_short_unknown_spans_only() {
    let mut p = sample::program();
    sample::thread(&mut p, 1.0, 0.0, 0.0);
    let t = sample::thread(&mut p, 1.0, 0.0, 0.0);
    t.span_ns = 50_000_000;
    t.shares.user = None;
    assert_eq!(share(&p, |s| s.user), Some(1.0));
    p.threads[1].span_ns = 1_000_000_000;
    assert_eq!(share(&p, |s| s.user), None);
}

#[test]
fn rate_is_per_second_of_cpu_time() {
    let mut p = sample::program();
    sample::thread(&mut p, 0.5, 0.5, 0.0).counters.voluntary_switches = Some(100);
    assert_eq!(rate(&p, |t| t.counters.voluntary_switches), Some(200.0));
    p.threads[0].shares.user = Some(0.0);
    assert_eq!(rate(&p, |t| t.counters.voluntary_switches), None);
}
