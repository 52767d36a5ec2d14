//! Commands in a sandbox, and what they print.

use crate::{
    Client, ExecEvents, Result,
    call::Repeat,
    events::{Begin, Events, Place},
};
use bytes::Bytes;
use reqwest::Method;
use seawall_api::{
    ProcessId, SandboxId,
    exec::ProcessInfo,
    http::{Encoding, Exec, ExecResult, List, SendSignal},
};

/// Which part of a process's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputAsk {
    /// The first offset.
    pub from: u64,
    /// Stay until it ends.
    pub follow: bool,
    pub encoding: Encoding,
}

impl Client {
    /// Runs a command to its end.
    pub async fn exec(&self, id: SandboxId, exec: &Exec) -> Result<ExecResult> {
        self.post(&["sandboxes", &id.to_string(), "exec"]).json(exec).answer().await
    }

    /// Runs a command and follows it. Hanging up does not end it.
    pub async fn exec_stream(&self, id: SandboxId, exec: &Exec) -> Result<ExecEvents> {
        let call = self.post(&["sandboxes", &id.to_string(), "exec", "stream"]).json(exec);
        // Until its process is known, whether it runs is not.
        let call = call.repeat(Repeat::Unseen);
        let begin = Begin { call, again: false, sandbox: Some(id), encoding: exec.encoding };
        Events::begin(self.clone(), begin).opened().await
    }

    /// Those that run, and those that ended lately.
    pub async fn processes(&self, id: SandboxId) -> Result<List<ProcessInfo>> {
        self.get(&["sandboxes", &id.to_string(), "processes"]).answer().await
    }

    /// What a process printed, and with `follow` what it prints.
    pub fn process_output(&self, id: SandboxId, process: ProcessId, ask: OutputAsk) -> ExecEvents {
        let OutputAsk { from, follow, encoding } = ask;
        let place = Place::Output { sandbox: id, process, encoding, follow };
        Events::follow(self.clone(), place, from)
    }

    /// `close`: nothing comes behind it.
    pub async fn send_input(
        &self,
        id: SandboxId,
        process: ProcessId,
        input: Bytes,
        close: bool,
    ) -> Result<()> {
        let path = ["sandboxes", &id.to_string(), "processes", &process.to_string(), "input"];
        self.post(&path).query("close", close).bytes(input).done().await
    }

    /// To the process and its group.
    pub async fn signal(&self, id: SandboxId, process: ProcessId, signal: i32) -> Result<()> {
        let path = ["sandboxes", &id.to_string(), "processes", &process.to_string(), "signal"];
        self.post(&path).json(&SendSignal { signal }).done().await
    }

    /// Ends a process and all that came from it.
    pub async fn kill(&self, id: SandboxId, process: ProcessId) -> Result<()> {
        let path = ["sandboxes", &id.to_string(), "processes", &process.to_string()];
        self.change(Method::DELETE, &path).done().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use seawall_api::{ErrorKind, http::ExecEvent};

    fn exec() -> Exec {
        Exec { command: Some("make".into()), ..Exec::default() }
    }

    #[tokio::test]
    async fn output_goes_on_where_it_broke_off() {
        let (id, process) = (SandboxId::generate(), ProcessId::generate());
        let started = format!(
            "id: 0\ndata: {{\"type\":\"started\",\"process\":\"{process}\",\"pid\":7}}\n\n\
             id: 3\ndata: {{\"type\":\"stdout\",\"data\":\"abc\"}}\n\n"
        );
        let exit = r#"{"type":"exit","exit_code":0,"status":{"code":0,"reason":"exited","output_end":5}}"#;
        let rest = format!("id: 5\ndata: {{\"type\":\"stdout\",\"data\":\"de\"}}\n\nid: 5\ndata: {exit}\n\n");
        let server = testing::serve(vec![testing::events(&started), testing::events(&rest)]).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut events = client.exec_stream(id, &exec()).await.unwrap();
        let mut printed = String::new();
        while let Some((_, event)) = events.next().await.unwrap() {
            if let ExecEvent::Stdout { data } = event {
                printed.push_str(&data);
            }
        }
        assert_eq!((printed.as_str(), events.process()), ("abcde", Some(process)));
        let asked = server.asked().await;
        let wanted =
            format!("GET /sandboxes/{id}/processes/{process}/output?from=3&follow=true&encoding=text");
        assert!(asked[1].starts_with(&wanted), "{}", asked[1]);
    }

    #[tokio::test]
    async fn a_command_that_nobody_confirmed_is_not_run_twice() {
        let server = testing::serve(vec![testing::events(""), testing::events("")]).await;
        let client = Client::new(&server.url, None).unwrap();
        let mut events = client.exec_stream(SandboxId::generate(), &exec()).await.unwrap();
        assert_eq!(events.next().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(server.asked().await.len(), 1);
    }
}
