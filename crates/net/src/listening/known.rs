//! The agents that a user knows: as `known_hosts` of ssh, with fingerprints of certificates.
use dmover_model::Fatal;

use super::Fingerprint;
use crate::endpoint::agent_name;

/// A list of agents: `HOST[:PORT] FINGERPRINT` in each line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownAgents(Vec<(String, Fingerprint)>);

impl KnownAgents {
    /// Reads the list. `what`: the file, for messages.
    ///
    /// # Errors
    /// A refusal: a line cannot be read.
    pub fn parse(text: &str, what: &str) -> Result<Self, Fatal> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let read = |(number, line): (usize, &str)| {
            let refused = |why: &str| {
                let message = format!("{what}, line {number}: {why}");
                Fatal::refused(message, "a line has HOST[:PORT] and a fingerprint; correct it")
            };
            match line.split_whitespace().collect::<Vec<&str>>()[..] {
                [agent, fingerprint] => match fingerprint.parse::<Fingerprint>() {
                    Ok(fingerprint) => Ok((agent.to_ascii_lowercase(), fingerprint)),
                    Err(why) => Err(refused(&why)),
                },
                _ => Err(refused("it does not have two words")),
            }
        };
        lines.map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The text of the list in which an agent has this certificate, and no other one.
    pub fn with(self, host: &str, port: u16, fingerprint: Fingerprint) -> String {
        let agent = agent_name(host, port).to_ascii_lowercase();
        let mut agents = self.0;
        agents.retain(|(other, _)| *other != agent);
        agents.push((agent, fingerprint));
        agents
            .iter()
            .fold(String::new(), |text, (agent, known)| text + &format!("{agent} {known}\n"))
    }

    /// The certificates of an agent: several if the list has several lines for it.
    pub fn of(&self, host: &str, port: u16) -> Vec<Fingerprint> {
        let wanted = agent_name(host, port).to_ascii_lowercase();
        self.0.iter().filter(|(agent, _)| *agent == wanted).map(|(_, known)| *known).collect()
    }
}
