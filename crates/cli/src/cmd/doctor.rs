//! `dmover doctor`.
use dmover_engine::capability::{Capabilities, glance, probe};
use dmover_sys::{AsFd, Errno};
use std::path::Path;
use std::process::ExitCode;

use crate::args::DoctorArgs;
use crate::print::{failure, line};
use dmover_job::quote::quoted;

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let mut code = dmover_model::ExitCode::Done;
    for path in &args.paths {
        let path = Path::new(path);
        match look(path) {
            Ok(looked) if args.json => line(&json(path, &looked)),
            Ok(looked) => text(path, &looked),
            Err(error) => {
                let reason = std::io::Error::from(error);
                let hint = "name an existing file or directory that you may read";
                failure(&format!("cannot open '{}': {reason}", path.display()), hint);
                code = dmover_model::ExitCode::Usage;
            }
        }
    }
    ExitCode::from(code.code())
}

/// The findings, and why a probe was not possible.
struct Looked {
    found: Capabilities,
    not_probed: Option<std::io::Error>,
}

fn look(path: &Path) -> Result<Looked, Errno> {
    let fd = match dmover_sys::path::open_directory(path) {
        // For a file, probe its directory: it is on the same file system unless the file itself is a mount point.
        Err(Errno::NOTDIR) => {
            let above = path.parent().filter(|above| *above != Path::new(""));
            dmover_sys::path::open_directory(above.unwrap_or(Path::new(".")))?
        }
        opened => opened?,
    };
    Ok(match probe(fd.as_fd()) {
        Ok(found) => Looked { found, not_probed: None },
        Err(error) => Looked { found: glance(fd.as_fd()), not_probed: Some(error.into()) },
    })
}

fn json(path: &Path, looked: &Looked) -> String {
    let fields = looked.found.findings.iter().map(|f| {
        let value = match f.value.as_str() {
            "yes" => serde_json::Value::Bool(true),
            "no" => serde_json::Value::Bool(false),
            text => text.parse::<u64>().map_or_else(|_| text.into(), serde_json::Value::from),
        };
        (f.name.to_owned(), value)
    });
    let mut object: serde_json::Map<_, _> = crate::print::json::path_fields(path).collect();
    object.insert("type".into(), "doctor".into());
    object.insert("schema".into(), crate::print::json::SCHEMA.into());
    object.insert("time".into(), jiff::Timestamp::now().to_string().into());
    object.insert("probed".into(), looked.not_probed.is_none().into());
    match &looked.not_probed {
        Some(reason) => object.insert("reason".into(), reason.to_string().into()),
        None => object.insert("can_preserve".into(), kept(&looked.found).into()),
    };
    object.extend(fields);
    serde_json::Value::Object(object).to_string()
}

fn kept(found: &Capabilities) -> Vec<&'static str> {
    found.attributes.iter().map(dmover_model::Attribute::word).collect()
}

fn text(path: &Path, looked: &Looked) {
    use std::os::unix::ffi::OsStrExt;
    line(&format!("{}:", quoted(path.as_os_str().as_bytes())));
    for finding in &looked.found.findings {
        line(&format!("  {:<22} {}", finding.name.replace('_', " "), finding.value));
    }
    let (label, words) = match &looked.not_probed {
        Some(reason) => ("not probed", format!("cannot create files there: {reason}")),
        None => ("can preserve", kept(&looked.found).join(", ")),
    };
    line(&format!("  {label:<22} {words}"));
}
