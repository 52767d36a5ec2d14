//! The steps of making and removing a sandbox, marked so that tests can hold a process after each of them.
//!
//! Without the feature `testing` this is nothing.

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn reached(_step: &'static str) {}

/// Holds this thread for ever after the step whose number is in `SEAWALL_TEST_HOLD`, and writes its name to the
/// file that `SEAWALL_TEST_HOLD_MARK` names.
#[cfg(feature = "testing")]
pub fn reached(step: &'static str) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
    if std::env::var_os("SEAWALL_TEST_TIMES").is_some() {
        static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let since = BEGUN.get_or_init(std::time::Instant::now).elapsed().as_micros();
        std::fs::write("/dev/stderr", format!("{since:>10} {step}\n")).unwrap_or_default();
    }
    let wanted = std::env::var("SEAWALL_TEST_HOLD").ok().and_then(|text| text.parse::<usize>().ok());
    if wanted != Some(number) {
        return;
    }
    if let Some(mark) = std::env::var_os("SEAWALL_TEST_HOLD_MARK") {
        let beside = std::path::PathBuf::from(&mark).with_extension("new");
        // Where this fails the test waits in vain, and says so.
        let _ = std::fs::write(&beside, step).and_then(|()| std::fs::rename(&beside, &mark));
    }
    loop {
        std::thread::park();
    }
}
