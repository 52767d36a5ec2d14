//! What is logged by a test, as lines.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    sync::Once,
};
use tracing::{Event, Metadata, Subscriber, field, span};

thread_local! {
    /// None: nobody listens on this thread.
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}
static INSTALLED: Once = Once::new();

/// For all tests of a process. One for each of them would miss lines: whether a line is wanted is remembered for the
/// whole process, and other tests come and go meanwhile.
#[derive(Debug)]
pub struct Log(());

impl Log {
    /// From here on, what this thread logs is kept.
    pub fn listen() {
        INSTALLED.call_once(|| {
            // Where there is one already, that one hears, and the test fails for want of lines.
            let _ = tracing::subscriber::set_global_default(Log(()));
        });
        LINES.set(Some(Vec::new()));
    }

    /// What was logged since, each with its level and its fields.
    pub fn take() -> Vec<String> {
        LINES.take().unwrap_or_default()
    }
}

struct Fields(String);

impl field::Visit for Fields {
    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        // A string takes everything.
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("seawall")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        LINES.with_borrow_mut(|lines| {
            let Some(lines) = lines else { return };
            let mut fields = Fields(event.metadata().level().to_string());
            event.record(&mut fields);
            lines.push(fields.0);
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
