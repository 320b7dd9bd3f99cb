//! Verbs about jobs that another host runs (`--at`).
use dmover_model::{Fatal, PathBytes};
use dmover_net::{ConnectOptions, RemoteHost, RemotePath};
use dmover_remote::{DelegatedJob, Places, Rules};
use std::process::ExitCode;
use std::sync::mpsc;

use super::destination_hosts::DestinationHosts;
use super::identity::credentials;
use super::remote::{VERSION, login_limit, ssh_options};
use super::run::failed;
use super::{ask, jobs};
use crate::args::{ElsewhereArgs, Verb};
use crate::config::words_as_typed;
use crate::print::screen;

impl Verb {
    /// Where the job of a verb is, if that is another host.
    pub(crate) fn elsewhere(&self) -> Option<&ElsewhereArgs> {
        let elsewhere = match self {
            Self::Jobs(args) => &args.elsewhere,
            Self::Status(args) => &args.elsewhere,
            Self::Wait(args) => &args.elsewhere,
            Self::Logs(args) => &args.elsewhere,
            Self::Errors(args) => &args.elsewhere,
            Self::History(args) => &args.elsewhere,
            Self::Pause(args) | Self::Cancel(args) => &args.elsewhere,
            Self::Resume(args) => &args.elsewhere,
            _ => return None,
        };
        elsewhere.at.as_ref().map(|_| elsewhere)
    }
}

/// Runs a verb about jobs of this host; `None`: it is another verb.
pub(crate) fn about_jobs(verb: &Verb) -> Option<ExitCode> {
    Some(match verb {
        Verb::Jobs(args) => jobs::list::jobs(args),
        Verb::Status(args) => jobs::status::status(args),
        Verb::Wait(args) => jobs::wait::wait(args),
        Verb::Logs(args) => jobs::logs::logs(args),
        Verb::Errors(args) => jobs::errors::errors(args),
        Verb::History(args) => jobs::history::history(args),
        Verb::Pause(args) => ask::pause(args),
        Verb::Cancel(args) => ask::cancel(args),
        Verb::Resume(args) => ask::resume(args),
        _ => return None,
    })
}

/// Has the host run this command, and prints what it prints.
pub(crate) fn run(args: &ElsewhereArgs) -> ExitCode {
    ask_there(args).unwrap_or_else(|error| failed(&error))
}

fn ask_there(args: &ElsewhereArgs) -> Result<ExitCode, Fatal> {
    let typed = args.at.clone().unwrap_or_default();
    let host = RemoteHost::parse(&typed)?;
    let place = PathBytes(b".".to_vec());
    let typed = PathBytes::from(typed.as_os_str());
    let there = RemotePath { host, others: Vec::new(), path: place.clone(), typed };
    let mut options = ConnectOptions::new(ssh_options(&args.ssh_command, None), VERSION);
    options.hello_within = login_limit();
    options.credentials = credentials();
    let job = DelegatedJob {
        words: words_as_typed().iter().map(|word| PathBytes::from(word.as_os_str())).collect(),
        spec: String::new(),
        typed: Vec::new(),
        columns: screen::is_there().then(|| u16::try_from(screen::columns()).unwrap_or(80)),
    };
    // A signal ends this process, and with it the connection.
    let (signals, received) = mpsc::channel();
    let hosts = DestinationHosts {
        served: Vec::new(),
        streams: options.streams.settings.clone(),
        signals,
        rules: Rules { all_take_part: false, first_runs: true },
        why_the_first: None,
        options,
    };
    let places = Places { sources: Vec::new(), destination: place };
    let ended = hosts.start(&there, (job, places), received)?;
    let code =
        ended.recv().map_err(|_| Fatal::Thread(std::io::Error::other("a thread panicked")))?;
    code.map(ExitCode::from)
}
