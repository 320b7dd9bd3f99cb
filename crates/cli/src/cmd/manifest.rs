//! `dmover manifest`.
use clap::ArgMatches;
use dmover_digest::lines::{self, Form, Line, Style};
use dmover_digest::manifest::{Header, ManifestError, Reader, Writer};
use dmover_model::{
    Body, Content, EntryKind, ExitCode as Code, Extended, HashType, NamedDigest, PathBytes, Record,
    Selection, Shape, TreePath,
};
use dmover_plan::filter::Filter;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use super::run::exit;
use crate::args::{
    DiffArgs, FilterArgs, FilterManifestArgs, FormatArg, ManifestAction, ManifestArgs, PrintArgs,
};
use crate::print::json::{SCHEMA, path_fields};
use crate::print::time::local_word;
use crate::print::{counted, failure};
use crate::spec;
use dmover_job::quote::quoted;

pub(crate) fn run(args: &ManifestArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let matches = matches.and_then(ArgMatches::subcommand).map(|(_, matches)| matches);
    let Some(matches) = matches else { return exit(Code::Usage) };
    let done = match &args.action {
        ManifestAction::Print(args) => print(args, matches),
        ManifestAction::Filter(args) => filter(args, matches),
        ManifestAction::Diff(args) => diff(args, matches),
    };
    match done {
        Ok(code) => exit(code),
        Err(Trouble::Usage(message, hint)) => {
            failure(&message, &hint);
            exit(Code::Usage)
        }
        Err(Trouble::Manifest(name, error)) => {
            failure(&format!("{name}: {error}"), "the entries before this point are valid");
            exit(Code::Integrity)
        }
        Err(Trouble::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            crate::signals::raise_again(signal_hook::consts::SIGPIPE)
        }
        Err(Trouble::Output(error)) => {
            failure(&format!("cannot write the output: {error}"), "check for free space");
            exit(Code::Fatal)
        }
    }
}

/// Why the command failed.
enum Trouble {
    Usage(String, Cow<'static, str>),
    Manifest(String, ManifestError),
    Output(std::io::Error),
}

fn usage(message: String, hint: &'static str) -> Trouble {
    Trouble::Usage(message, hint.into())
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

/// Reads the entries of a manifest that the rules admit.
struct Source {
    name: String,
    reader: Reader<Box<dyn Read>>,
    header: Header,
    rules: Filter,
    /// Whether the rules have excluded an entry.
    left_out: bool,
}

impl Source {
    fn open(path: &OsStr, selection: &Selection) -> Result<Self, Trouble> {
        let name = quoted(path.as_bytes());
        let input: Box<dyn Read> = if path == "-" {
            Box::new(std::io::stdin())
        } else {
            let hint = "name a file written by 'dmover copy --manifest'";
            let file = File::open(path).map_err(|error| {
                usage(format!("cannot read the manifest {name}: {error}"), hint)
            })?;
            if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
                return Err(usage(format!("{name} is a directory"), hint));
            }
            Box::new(BufReader::with_capacity(256 << 10, file))
        };
        let rules = Filter::new(selection).map_err(|error| {
            usage(error.to_string(), "see 'dmover manifest print --help' for patterns")
        })?;
        match Reader::new(input) {
            Ok((reader, header)) => Ok(Self { name, reader, header, rules, left_out: false }),
            Err(error @ (ManifestError::Foreign | ManifestError::Version(_))) => {
                let hint = "name a file written by 'dmover copy --manifest'";
                Err(usage(format!("{name}: {error}"), hint))
            }
            Err(error) => Err(Trouble::Manifest(name, error)),
        }
    }

    /// The next entry that the rules admit.
    fn next(&mut self) -> Result<Option<Record>, Trouble> {
        loop {
            let record = self.reader.next_record();
            let record = record.map_err(|error| Trouble::Manifest(self.name.clone(), error))?;
            let Some(record) = record else { return Ok(None) };
            if self.admits(&record) {
                return Ok(Some(record));
            }
            self.left_out = true;
        }
    }

    /// Whether the rules admit an entry and all directories above it.
    fn admits(&self, record: &Record) -> bool {
        self.rules.admits_record(record)
    }

    /// Prints a note if the manifest does not list the whole tree.
    fn tell_end(&self) {
        if self.reader.ending().is_some_and(|ending| !ending.complete) {
            crate::print::say(&format!(
                "dmover: note: {} is incomplete: its job was stopped, or did not record all \
                 entries",
                self.name
            ));
        }
    }
}

fn selection(args: &FilterArgs, matches: &ArgMatches) -> Result<Selection, Trouble> {
    spec::filter(args, matches).map_err(|unusable| Trouble::Usage(unusable.message, unusable.hint))
}

fn print(args: &PrintArgs, matches: &ArgMatches) -> Result<Code, Trouble> {
    let mut source = Source::open(&args.manifest, &selection(&args.filter, matches)?)?;
    let mut out = crate::print::data();
    if args.format == FormatArg::Json {
        writeln!(out, "{}", header_json(&source.header))?;
    }
    let printed = loop {
        match source.next() {
            Ok(Some(record)) => match args.format {
                FormatArg::Text => writeln!(out, "{}", text_line(&record))?,
                FormatArg::Json => writeln!(out, "{}", record_json(&record))?,
                FormatArg::Sums => out.write_all(&sum_lines(&record, args))?,
            },
            Ok(None) => break Ok(Code::Done),
            Err(error) => break Err(error),
        }
    };
    if let (FormatArg::Json, Some(ending)) = (args.format, source.reader.ending()) {
        let (records, complete) = (ending.records, ending.complete);
        let line =
            json!({"type": "end", "schema": SCHEMA, "records": records, "complete": complete});
        writeln!(out, "{line}")?;
    }
    // Print the entries before the damage as well.
    out.flush()?;
    source.tell_end();
    printed
}

fn text_line(Record { path, body }: &Record) -> String {
    let kind = match body.kind {
        EntryKind::File => '-',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Fifo => 'p',
        EntryKind::Socket => 's',
        EntryKind::CharDevice => 'c',
        EntryKind::BlockDevice => 'b',
    };
    let time = local_word(body.mtime);
    let digest = body.content.as_ref().map_or("-".into(), |content| {
        let leaf = if content.shape.is_plain() { "" } else { "-tree" };
        format!("{}{leaf}:{}", content.shape.hash(), content.digest)
    });
    let shown = if path.is_root() { ".".into() } else { quoted(path.as_bytes()) };
    let to = body.symlink.as_ref().map(|to| format!(" -> {}", quoted(to))).unwrap_or_default();
    let (mode, uid, gid, size) = (body.mode, body.uid, body.gid, body.size);
    format!("{kind}{mode:04o} {uid}:{gid} {size:>12} {time} {digest} {shown}{to}")
}

fn header_json(header: &Header) -> Value {
    let mut fields = Map::new();
    fields.insert("type".into(), "manifest".into());
    fields.insert("schema".into(), SCHEMA.into());
    let base = PathBytes(header.base.clone());
    fields.extend(path_fields(&base.to_path()));
    fields.insert("job".into(), header.job.clone().into());
    fields.insert("program".into(), header.program.clone().into());
    Value::Object(fields)
}

fn record_json(Record { path, body }: &Record) -> Value {
    let mut fields = Map::new();
    fields.insert("type".into(), "entry".into());
    fields.insert("schema".into(), SCHEMA.into());
    let path = PathBytes(path.as_bytes().to_vec());
    fields.extend(path_fields(&path.to_path()));
    let Body { kind, mode, uid, gid, size, mtime, link, symlink, device, extended, content } = body;
    let known = json!({
        "kind": kind, "mode": format!("{mode:04o}"), "uid": uid, "gid": gid, "bytes": size,
        "mtime": {"seconds": mtime.seconds, "nanoseconds": mtime.nanoseconds},
    });
    fields.extend(known.as_object().cloned().unwrap_or_default());
    if let Some(link) = link {
        fields.insert("link".into(), link.to_string().into());
    }
    if let Some(to) = symlink {
        let to = PathBytes(to.to_vec());
        fields.insert("target".into(), Value::Object(path_fields(&to.to_path()).collect()));
    }
    if let Some((major, minor)) = device {
        fields.insert("device".into(), json!([major, minor]));
    }
    let Extended { xattrs, acls, flags, project } = extended;
    for (key, named) in [("xattrs", xattrs), ("acls", acls)] {
        fields.extend(named.as_ref().map(|all| (key.into(), named_json(all))));
    }
    fields.extend(flags.map(|flags| ("flags".into(), flags.into())));
    if let Some((id, inherit)) = project {
        fields.insert("project".into(), json!({"id": id, "inherit": inherit}));
    }
    if let Some(content) = content {
        fields.insert("hash_type".into(), content.shape.hash().word().into());
        fields.insert("digest".into(), json!(content.digest));
        if !content.shape.is_plain() {
            fields.insert("leaf_bytes".into(), content.shape.leaf().into());
        }
        if !content.pieces.is_empty() {
            fields.insert("piece_bytes".into(), content.shape.piece().into());
            fields.insert("pieces".into(), json!(content.pieces));
        }
    }
    Value::Object(fields)
}

fn named_json(all: &[NamedDigest]) -> Value {
    let one = |NamedDigest { name, digest }: &NamedDigest| {
        let name = PathBytes(name.to_vec()).to_path();
        let named = |(key, value): (String, Value)| (key.replace("path", "name"), value);
        let mut fields: Map<String, Value> = path_fields(&name).map(named).collect();
        fields.insert("digest".into(), json!(digest));
        Value::Object(fields)
    };
    all.iter().map(one).collect()
}

fn sum_lines(Record { path, body }: &Record, args: &PrintArgs) -> Vec<u8> {
    let Some(content) = &body.content else { return Vec::new() };
    let mut name = match &args.prefix {
        Some(prefix) => {
            let prefix = prefix.as_bytes();
            let end = prefix.iter().rposition(|c| *c != b'/').map_or(0, |last| last + 1);
            [&prefix[..end], b"/"].concat()
        }
        None => Vec::new(),
    };
    name.extend_from_slice(path.as_bytes());
    let leaf = (!content.shape.is_plain()).then(|| content.shape.leaf());
    let form = Form { leaf, ..Form::PLAIN };
    let line = Line { name: &name, hash: content.shape.hash(), form, digests: &[content.digest] };
    let mut text = Vec::new();
    lines::write(&mut text, line, Style { tag: args.tag, nul: args.zero, ..Style::default() });
    text
}

fn filter(args: &FilterManifestArgs, matches: &ArgMatches) -> Result<Code, Trouble> {
    let mut source = Source::open(&args.manifest, &selection(&args.filter, matches)?)?;
    let mut out = File::create_new(&args.output).map_err(|error| {
        let name = quoted(args.output.as_bytes());
        usage(format!("cannot create {name}: {error}"), "name a file that does not exist")
    })?;
    let mut writer = Writer::new(&source.header);
    let read = loop {
        match source.next() {
            Ok(Some(record)) => writer.push(&record),
            Ok(None) => break Ok(Code::Done),
            Err(error) => break Err(error),
        }
        out.write_all(&writer.take())?;
    };
    let ending = source.reader.ending();
    let complete = ending.is_some_and(|ending| ending.complete) && !source.left_out;
    // Keep the entries before the damage, but without the ending that says that nothing is missing.
    let rest = if read.is_ok() { writer.finish(complete) } else { writer.break_off() };
    out.write_all(&rest)?;
    out.sync_all()?;
    source.tell_end();
    read
}

/// A short digest that stands for a path or a body in comparisons.
type Key = [u8; 16];

fn key(bytes: &[u8]) -> Key {
    let hash = blake3::hash(bytes);
    std::array::from_fn(|at| hash.as_bytes()[at])
}

fn body_key(record: &Record) -> Key {
    // Inode numbers differ between copies, and the digest already covers the pieces.
    let mut body = Body { link: None, ..record.body.clone() };
    if let Some(content) = &mut body.content {
        content.pieces.clear();
    }
    key(record_json(&Record { path: TreePath::root(), body }).to_string().as_bytes())
}

fn diff(args: &DiffArgs, matches: &ArgMatches) -> Result<Code, Trouble> {
    let selection = selection(&args.filter, matches)?;
    if args.old == "-" || args.new == "-" {
        let hint = "name two files: the comparison reads them twice";
        return Err(usage("'manifest diff' cannot read standard input".into(), hint));
    }
    // With a flag: whether the new manifest lists the path too. A manifest may list an entry twice.
    let mut old: HashMap<Key, (Key, bool)> = HashMap::new();
    let mut source = Source::open(&args.old, &selection)?;
    while let Some(record) = source.next()? {
        old.insert(key(record.path.as_bytes()), (body_key(&record), false));
    }
    source.tell_end();
    // Entries that only the new manifest lists, or that differ.
    let mut changed: HashMap<Key, Record> = HashMap::new();
    let mut added: Vec<Record> = Vec::new();
    let mut new: HashSet<Key> = HashSet::new();
    let mut source = Source::open(&args.new, &selection)?;
    while let Some(record) = source.next()? {
        let path = key(record.path.as_bytes());
        match old.get_mut(&path) {
            Some((body, seen)) => {
                *seen = true;
                if *body != body_key(&record) {
                    changed.insert(path, record);
                }
            }
            None if new.insert(path) => added.push(record),
            None => {}
        }
    }
    source.tell_end();
    let mut out = crate::print::data();
    let mut count = 0u64;
    let mut unlike = false;
    let mut tell = |what: &str, path: &TreePath, differs: &[&str]| -> std::io::Result<()> {
        count += 1;
        if args.json {
            let mut fields = Map::new();
            fields.insert("type".into(), "difference".into());
            fields.insert("schema".into(), SCHEMA.into());
            let path = PathBytes(path.as_bytes().to_vec());
            fields.extend(path_fields(&path.to_path()));
            fields.insert("what".into(), what.into());
            fields.insert("differs".into(), json!(differs));
            return writeln!(out, "{}", Value::Object(fields));
        }
        let path = if path.is_root() { ".".into() } else { quoted(path.as_bytes()) };
        let differs = differs.join(", ");
        writeln!(out, "{what:<8} {path}{}{differs}", if differs.is_empty() { "" } else { ": " })
    };
    old.retain(|_, (_, seen)| !*seen);
    if !old.is_empty() || !changed.is_empty() {
        let mut source = Source::open(&args.old, &selection)?;
        while let Some(record) = source.next()? {
            let path = key(record.path.as_bytes());
            if old.remove(&path).is_some() {
                tell("missing", &record.path, &[])?;
            } else if let Some(new) = changed.remove(&path) {
                let differs = differences(&record.body, &new.body);
                unlike |= digests_unlike(&record.body, &new.body);
                // A value that only one manifest records is no difference.
                if !differs.is_empty() {
                    tell("changed", &record.path, &differs)?;
                }
            }
        }
    }
    for record in added {
        tell("new", &record.path, &[])?;
    }
    out.flush()?;
    if unlike {
        crate::print::say(
            "dmover: note: some digests were not compared: their hash types or leaf sizes differ",
        );
    }
    if count == 0 {
        return Ok(if unlike { Code::Partial } else { Code::Done });
    }
    crate::print::say(&format!("dmover: {}", counted(count, "difference", "differences")));
    Ok(Code::Different)
}

/// Whether both entries have digests that cannot be compared with each other.
fn digests_unlike(old: &Body, new: &Body) -> bool {
    let made = |body: &Body| body.content.as_ref().map(|content| made_by(&content.shape));
    old.size == new.size && made(old).zip(made(new)).is_some_and(|(old, new)| old != new)
}

/// The hash type and the leaf size of a digest.
fn made_by(shape: &Shape) -> (HashType, Option<u64>) {
    (shape.hash(), (!shape.is_plain()).then(|| shape.leaf()))
}

/// Whether two values are equal, or at least one is not recorded.
fn known<T: PartialEq>(old: Option<&T>, new: Option<&T>) -> bool {
    old.is_none() || new.is_none() || old == new
}

fn differences(old: &Body, new: &Body) -> Vec<&'static str> {
    let both = |old: Option<&Content>, new: Option<&Content>| match (old, new) {
        (Some(old), Some(new)) => {
            made_by(&old.shape) != made_by(&new.shape) || old.digest == new.digest
        }
        (old, new) => old.is_some() == new.is_some(),
    };
    let (was, is) = (&old.extended, &new.extended);
    let all = [
        (old.kind == new.kind, "type"),
        (old.size == new.size, "size"),
        (old.mtime == new.mtime, "mtime"),
        (both(old.content.as_ref(), new.content.as_ref()), "digest"),
        (old.mode == new.mode, "mode"),
        ((old.uid, old.gid) == (new.uid, new.gid), "owner"),
        (old.symlink == new.symlink, "target"),
        (old.device == new.device, "device"),
        (known(was.xattrs.as_ref(), is.xattrs.as_ref()), "xattr"),
        (known(was.acls.as_ref(), is.acls.as_ref()), "acl"),
        (known(was.flags.as_ref(), is.flags.as_ref()), "flags"),
        (was.project == is.project, "project"),
    ];
    all.iter().filter(|(same, _)| !same).map(|(_, word)| *word).collect()
}
