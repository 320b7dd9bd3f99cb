//! Circles of modules: the modules of a crate use each other in one direction only.
//!
//! A module is a file or directory right below `src`, with all that is in it. One module uses another by a path
//! (`crate::other::…`, also in a `use` or by a name that the root of the crate imports), or by calling a method that the
//! other one has in an impl block of a type that several modules extend. The latter needs no `use`, and is only seen if
//! the receiver is `self` or has the name of the type: `desk.ask(…)`, `self.desk.ask(…)`, `Desk::ask(…)`.
//! The root of a crate and tests do not count.
use std::collections::{BTreeMap, BTreeSet};

use super::rust::{RustSource, Use, Word};
use super::{Finding, SourceFile};

/// A module of a crate uses another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    /// The crate.
    of: String,
    from: String,
    to: String,
}

/// Edges, and where each one is first seen.
type Edges = BTreeMap<Edge, Seen>;

/// A name in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    path: String,
    line: usize,
    name: String,
}

/// All crates.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let places = files.iter().filter_map(Place::of);
    let crates: BTreeSet<String> = places.map(|place| place.of.to_owned()).collect();
    crates.iter().flat_map(|of| circles_of(files, of)).collect()
}

/// The edges of a crate that belong to a circle.
fn circles_of(files: &[SourceFile], of: &str) -> Vec<Finding> {
    let (paths, calls) = (imports(files, of), receivers(files, of));
    let circles = components(&paths.keys().chain(calls.keys()).collect());
    let is_inside = |edge: &Edge| {
        let has_both = |circle: &BTreeSet<&str>| {
            circle.contains(edge.from.as_str()) && circle.contains(edge.to.as_str())
        };
        circles.iter().any(has_both)
    };
    let inside = paths.iter().chain(&calls).filter(|(edge, _)| is_inside(edge));
    inside.map(|(edge, seen)| seen.finding(edge)).collect()
}

/// The circles: sets of two and more modules, each of which leads to all others of its set.
fn components<'a>(edges: &BTreeSet<&'a Edge>) -> Vec<BTreeSet<&'a str>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        reached.entry(&edge.from).or_default().insert(&edge.to);
        reached.entry(&edge.to).or_default();
    }
    // Crates have dozens of modules: each round makes the paths twice as long.
    loop {
        let longer: BTreeMap<&str, BTreeSet<&str>> = reached
            .iter()
            .map(|(from, to)| {
                let further = to.iter().flat_map(|middle| &reached[middle]);
                (*from, to.iter().chain(further).copied().collect())
            })
            .collect();
        if longer == reached {
            break;
        }
        reached = longer;
    }
    let circle = |module: &&str| -> BTreeSet<&str> {
        reached[module].iter().filter(|other| reached[*other].contains(module)).copied().collect()
    };
    let circles: BTreeSet<BTreeSet<&str>> = reached.keys().map(circle).collect();
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The edges by paths.
fn imports(files: &[SourceFile], of: &str) -> Edges {
    let modules = modules(files, of);
    let exported = exported(files, of, &modules);
    let mut edges = Edges::new();
    for (file, place, rust) in sources(files, of) {
        for word in shipped(rust).filter(|word| word.used_as == Use::Path) {
            let Some(first) = place.first_segment(&word.name) else { continue };
            let module = modules.get(first).or_else(|| exported.get(first));
            note(&mut edges, (file, &place, word), module.copied());
        }
    }
    edges
}

/// The edges by method calls.
fn receivers(files: &[SourceFile], of: &str) -> Edges {
    let methods = methods(files, of);
    let mut edges = Edges::new();
    for (file, place, rust) in sources(files, of) {
        for word in shipped(rust) {
            let parts = match word.used_as {
                Use::MethodOf => word.name.split_once('.'),
                Use::Call => word.name.rsplit_once("::"),
                _ => None,
            };
            let Some((receiver, name)) = parts else { continue };
            let receiver = receiver.rsplit("::").next().unwrap_or(receiver);
            let all = match receiver {
                "self" | "Self" => rust.receiver(word.line).and_then(|of| methods.get(of)),
                _ => methods.iter().find(|(of, _)| is_called(of, receiver)).map(|(_, all)| all),
            };
            note(&mut edges, (file, &place, word), all.and_then(|all| all.get(name)).copied());
        }
    }
    edges
}

/// The methods of each type that several modules extend, with the module of each method. Modules that have types of the
/// same name are taken to extend their own.
fn methods<'a>(
    files: &'a [SourceFile],
    of: &'a str,
) -> BTreeMap<&'a str, BTreeMap<&'a str, &'a str>> {
    let mut methods: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    let mut defined: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, place, rust) in sources(files, of) {
        for method in rust.methods.iter().filter(|method| !rust.in_test(method.line)) {
            methods.entry(&method.of).or_default().insert(&method.name, place.module);
        }
        for of in rust.types.iter().filter(|of| !rust.in_test(of.line)) {
            defined.entry(&of.name).or_default().insert(place.module);
        }
    }
    let is_one = |of: &str| defined.get(of).is_none_or(|modules| modules.len() == 1);
    let modules = |all: &BTreeMap<&str, &str>| all.values().collect::<BTreeSet<_>>().len();
    methods.retain(|of, all| is_one(of) && modules(all) > 1);
    methods
}

/// Whether a receiver has the name of a type, as it is or in lower case: `JobFile`, `job_file`.
fn is_called(of: &str, receiver: &str) -> bool {
    let mut variable = String::new();
    for (at, c) in of.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            variable.push('_');
        }
        variable.push(c.to_ascii_lowercase());
    }
    receiver == of || receiver == variable
}

/// Adds an edge from the module of a word, unless it leads nowhere or to the same module.
fn note(
    edges: &mut Edges,
    (file, place, word): (&SourceFile, &Place<'_>, &Word),
    to: Option<&str>,
) {
    let Some(to) = to.filter(|to| *to != place.module) else { return };
    let edge = Edge { of: place.of.into(), from: place.module.into(), to: to.into() };
    let seen = Seen { path: file.path.clone(), line: word.line, name: word.name.clone() };
    edges.entry(edge).or_insert(seen);
}

/// Where a file of a module is.
struct Place<'a> {
    /// The crate.
    of: &'a str,
    module: &'a str,
    /// All modules from the root to the file.
    parts: Vec<&'a str>,
}

impl<'a> Place<'a> {
    /// `None`: test code, the root of a crate, another program, or no source of a crate.
    fn of(file: &'a SourceFile) -> Option<Self> {
        let (of, path) = crate_and_path(&file.path)?;
        let path = path.strip_suffix(".rs").filter(|_| !file.is_test())?;
        let parts: Vec<&str> = path.split('/').filter(|part| *part != "mod").collect();
        let module = *parts.first()?;
        (!["lib", "main", "bin"].contains(&module)).then_some(Self { of, module, parts })
    }

    /// The first segment below the root of the crate of a path in this file: `a` of `crate::a::b` and `super::a`.
    fn first_segment<'b>(&'b self, path: &'b str) -> Option<&'b str> {
        let segments: Vec<&str> = path.split("::").collect();
        let up = segments.iter().take_while(|segment| **segment == "super").count();
        match *segments.first()? {
            "crate" => segments.get(1).copied(),
            "super" if up >= self.parts.len() => segments.get(up).copied(),
            _ => None,
        }
    }
}

/// The crate of a file, and its path below `src`.
fn crate_and_path(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix("crates/").unwrap_or(path);
    let (of, path) = path.split_once("/src/")?;
    (!of.contains('/')).then_some((of, path))
}

/// The files of all modules of a crate.
fn sources<'a>(
    files: &'a [SourceFile],
    of: &'a str,
) -> impl Iterator<Item = (&'a SourceFile, Place<'a>, &'a RustSource)> {
    files.iter().filter_map(move |file| {
        let place = Place::of(file).filter(|place| place.of == of)?;
        Some((file, place, file.rust()?))
    })
}

fn modules<'a>(files: &'a [SourceFile], of: &'a str) -> BTreeSet<&'a str> {
    sources(files, of).map(|(_, place, _)| place.module).collect()
}

/// Names outside tests.
fn shipped(rust: &RustSource) -> impl Iterator<Item = &Word> {
    rust.words.iter().filter(|word| !rust.in_test(word.line))
}

/// Names that the root of a crate has from one of its modules, with the module.
fn exported<'a>(
    files: &'a [SourceFile],
    of: &str,
    modules: &BTreeSet<&str>,
) -> BTreeMap<&'a str, &'a str> {
    let mut exported = BTreeMap::new();
    let is_root = |file: &&SourceFile| {
        crate_and_path(&file.path)
            .is_some_and(|(root, path)| root == of && ["lib.rs", "main.rs"].contains(&path))
    };
    for rust in files.iter().filter(is_root).filter_map(SourceFile::rust) {
        for word in shipped(rust).filter(|word| word.used_as == Use::Path) {
            if let Some((module, name)) = word.name.split_once("::") {
                let name = name.rsplit("::").next().unwrap_or(name);
                let is_of_root = rust.functions.iter().any(|function| function.name == name);
                if modules.contains(module) && !is_of_root {
                    exported.insert(name, module);
                }
            }
        }
    }
    exported
}

impl Seen {
    fn finding(&self, Edge { of, from, to }: &Edge) -> Finding {
        let name = &self.name;
        let what = format!(
            "`{name}`: in {of}, {from} must not use {to}, which uses it in turn: move what both need \
             to a lower module"
        );
        Finding { path: self.path.clone(), line: self.line, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a crate with these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| SourceFile::new(&format!("crates/c/src/{path}.rs"), text);
        let all: Vec<SourceFile> = files.iter().map(source).collect();
        let findings = check(&all);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    const A: &str = "crates/c/src/a.rs:1";
    const B: &str = "crates/c/src/b.rs:1";

    #[test]
    fn a_circle_of_two_is_found() {
        let circle = [("a", "use crate::b::B;"), ("b", "fn f() { super::a::g() }")];
        assert_eq!(found(&circle), [A, B]);
        assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "")]), [""; 0]);
        let through_the_root =
            [("lib", "mod a; mod b; pub use b::B;"), ("a", "use crate::B;"), circle[1]];
        assert_eq!(found(&through_the_root), [A, B]);
    }

    #[test]
    fn a_circle_of_three_is_found() {
        let text = |to: &str| format!("use crate::{{{to}}};");
        let (a, b, c) = (text("b::{self, X}"), text("c"), text("a::Y as Z"));
        let circle = [("a", a.as_str()), ("b", b.as_str()), ("c", c.as_str()), ("d", a.as_str())];
        assert_eq!(found(&circle).len(), 3);
    }

    #[test]
    fn a_module_and_its_children_are_one() {
        let files = [
            ("a/mod", "mod b; use b::B; use self::b::C;"),
            ("a/b", "use super::A; use crate::a::D; use super::super::d::E;"),
            ("d", ""),
        ];
        assert_eq!(found(&files), [""; 0]);
        let back = [files[0], files[1], ("d", "use crate::a::F;")];
        assert_eq!(found(&back), ["crates/c/src/a/b.rs:1", "crates/c/src/d.rs:1"]);
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let test = "#[cfg(test)]\nmod tests {\n use crate::b::B;\n fn f() { crate::b::g() }\n}";
        let b = ("b", "use crate::a::A;");
        assert_eq!(found(&[("a", test), b]), [""; 0]);
        assert_eq!(found(&[("a/tests", "use crate::b::B;"), b]), [""; 0]);
        assert_eq!(found(&[("a_tests", "use crate::b::B;"), b]), [""; 0]);
    }

    #[test]
    fn a_method_of_a_receiver_counts() {
        let a = "impl JobFile { fn a(&self) { self.b() } }";
        for b in [
            "impl JobFile { fn b(&self) { self.a() } }",
            "impl JobFile { fn b() { Self::a(x) } }",
            "impl JobFile { fn b() {} } fn f(x: X) { x.job_file()?.a(1) }",
            "impl JobFile { fn b() {} } fn f() { JobFile::a(x) }",
            "impl JobFile { fn b() {} } impl T for JobFile { fn t() { g!(self.a()) } }",
        ] {
            assert_eq!(found(&[("a", a), ("b", b)]), [A, B], "{b}");
        }
        let a = format!("struct JobFile; {a}");
        let a = a.as_str();
        for b in [
            "impl JobFile { fn b() {} } impl Other { fn c(&self) { self.a() } }",
            "impl JobFile { fn b() {} } fn f(other: Other) { other.a() }",
            "struct JobFile; impl JobFile { fn b(&self) { self.a() } fn a(&self) {} }",
        ] {
            assert_eq!(found(&[("a", a), ("b", b)]), [""; 0], "{b}");
        }
        let mixed = ("b", "use crate::a::A; impl JobFile { fn b() {} }");
        assert_eq!(found(&[("a", a), mixed]), [B, A], "a path and a call are a circle");
    }
}
