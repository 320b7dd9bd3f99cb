//! `dmover doctor`.
use dmover_engine::capability::{Capabilities, probe};
use dmover_sys::AsFd;
use std::path::Path;
use std::process::ExitCode;

use crate::args::DoctorArgs;
use crate::print::{failure, line};
use crate::quote::quoted;

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let mut code = dmover_model::ExitCode::Done;
    for path in &args.paths {
        let path = Path::new(path);
        let probed = dmover_sys::path::open_directory(path).and_then(|fd| probe(fd.as_fd()));
        match probed {
            Ok(found) if args.json => line(&json(path, &found)),
            Ok(found) => text(path, &found),
            Err(error) => {
                let reason = std::io::Error::from(error);
                let hint = "name a directory where you may create files";
                failure(&format!("cannot look at '{}': {reason}", path.display()), hint);
                code = dmover_model::ExitCode::Usage;
            }
        }
    }
    ExitCode::from(code.code())
}

fn json(path: &Path, found: &Capabilities) -> String {
    let fields = found.findings.iter().map(|f| {
        let value = match f.value.as_str() {
            "yes" => serde_json::Value::Bool(true),
            "no" => serde_json::Value::Bool(false),
            text => text.parse::<u64>().map_or_else(|_| text.into(), serde_json::Value::from),
        };
        (f.name.to_owned(), value)
    });
    let mut object: serde_json::Map<_, _> = crate::print::json::path_fields(path).collect();
    object.insert("type".into(), "doctor".into());
    object.extend(fields);
    serde_json::Value::Object(object).to_string()
}

fn text(path: &Path, found: &Capabilities) {
    use std::os::unix::ffi::OsStrExt;
    line(&format!("{}:", quoted(path.as_os_str().as_bytes())));
    for finding in &found.findings {
        line(&format!("  {:<22} {}", finding.name.replace('_', " "), finding.value));
    }
    let kept: Vec<&str> = found.attributes.iter().map(dmover_model::Attribute::word).collect();
    line(&format!("  {:<22} {}", "can preserve", kept.join(", ")));
}
