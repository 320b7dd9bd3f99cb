//! Circles of modules. The modules of a crate use each other downwards only; the edges that point upwards are in a list
//! that only gets shorter.
//!
//! A module is a file or directory right below `src`, with all that is in it. One module uses another by a path
//! (`crate::other::…`, also in a `use` or by a name that the root of the crate imports), or by calling a method that the
//! other one has in an impl block of a type that several modules extend. The latter needs no `use`, and is only seen if
//! the receiver is `self` or has the name of the type: `engine.ask(…)`, `self.engine.ask(…)`, `Engine::ask(…)`.
//! The root of a crate and tests do not count.
use std::collections::{BTreeMap, BTreeSet};

use super::rust::{RustSource, Use, Word};
use super::{Finding, SourceFile};

/// The list of edges that point upwards.
const LIST: &str = "xtask/known-edges.txt";

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

/// A name in a file, or a line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    path: String,
    line: usize,
    name: String,
}

/// The list: the order of modules by crate, edges by paths and edges by method calls.
#[derive(Debug, Default)]
struct Known {
    /// From the lowest module to the highest.
    orders: BTreeMap<String, Vec<String>>,
    paths: Edges,
    calls: Edges,
}

/// All crates.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let (known, mut findings) = Known::read(files);
    let of_edges = known.paths.keys().chain(known.calls.keys()).map(|edge| edge.of.clone());
    let mut crates: BTreeSet<String> = of_edges.chain(known.orders.keys().cloned()).collect();
    crates.extend(files.iter().filter_map(Place::of).map(|place| place.of.to_owned()));
    for of in crates {
        let (paths, calls) = (imports(files, &of), receivers(files, &of));
        let upwards = match known.orders.get(&of) {
            Some(order) => {
                findings.extend(check_order(files, &of, order));
                (upward(&paths, order), upward(&calls, order))
            }
            None => (in_circles(&paths, &calls, &known), in_circles(&calls, &paths, &known)),
        };
        findings.extend(compare(&of, &upwards.0, &known.paths));
        findings.extend(compare(&of, &upwards.1, &known.calls));
    }
    findings
}

/// Edges that are not in the list, and lines of the list that have no edge.
fn compare(of: &str, found: &Edges, known: &Edges) -> Vec<Finding> {
    let new = found.iter().filter(|(edge, _)| !known.contains_key(edge)).map(|(edge, seen)| {
        let Edge { of, from, to } = edge;
        let name = &seen.name;
        let what = format!(
            "`{name}`: in {of}, {from} must not use {to}, which is above it or uses it in turn: \
             move what both need to a lower module"
        );
        seen.finding(what)
    });
    let gone = known.iter().filter(|(edge, _)| edge.of == of && !found.contains_key(edge));
    let gone = gone.map(|(_, seen)| {
        seen.finding(format!("'{}' is no edge that points upwards: remove the line", seen.name))
    });
    new.chain(gone).collect()
}

/// Every module has a place in the order, and every place a module.
fn check_order(files: &[SourceFile], of: &str, order: &[String]) -> Vec<Finding> {
    let modules = modules(files, of);
    let unplaced = modules.iter().filter(|module| !order.iter().any(|placed| placed == *module));
    let unplaced = unplaced.map(|module| format!("module {module} has no place in the order"));
    let absent = order.iter().filter(|module| !modules.contains(module.as_str()));
    let absent = absent.map(|module| format!("the order has {module}, which is no module"));
    let all = unplaced.chain(absent);
    all.map(|what| Finding::of_tree(LIST, format!("{of}: {what}"))).collect()
}

/// The edges from a lower module to a higher one.
fn upward(edges: &Edges, order: &[String]) -> Edges {
    let place = |module: &str| order.iter().position(|placed| placed == module);
    let is_upward =
        |edge: &Edge| place(&edge.from).zip(place(&edge.to)).is_some_and(|(from, to)| from < to);
    edges.iter().filter(|(edge, _)| is_upward(edge)).map(clone).collect()
}

/// The edges of a crate without an order that belong to a circle of edges of both kinds: those that are in the list and
/// are needed there, and those of circles that stay without them.
fn in_circles(edges: &Edges, others: &Edges, known: &Known) -> Edges {
    let all: BTreeSet<&Edge> = edges.keys().chain(others.keys()).collect();
    let is_known = |edge: &Edge| known.paths.contains_key(edge) || known.calls.contains_key(edge);
    let unknown = all.iter().copied().filter(|edge| !is_known(edge)).collect();
    let (all, left) = (components(&all), components(&unknown));
    let is_inside = |circles: &[BTreeSet<&str>], edge: &Edge| {
        let has_both = |circle: &BTreeSet<&str>| {
            circle.contains(edge.from.as_str()) && circle.contains(edge.to.as_str())
        };
        circles.iter().any(has_both)
    };
    let counts = |edge: &Edge| is_inside(if is_known(edge) { &all } else { &left }, edge);
    edges.iter().filter(|(edge, _)| counts(edge)).map(clone).collect()
}

fn clone((edge, seen): (&Edge, &Seen)) -> (Edge, Seen) {
    (edge.clone(), seen.clone())
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

impl Known {
    /// Reads the list. A line is `order CRATE MODULE…`, which a further one continues, `CRATE MODULE -> MODULE` (by a
    /// path), `CRATE MODULE => MODULE` (by a method call), empty, or a comment that begins with `#`.
    fn read(files: &[SourceFile]) -> (Self, Vec<Finding>) {
        let (mut known, mut findings) = (Self::default(), Vec::new());
        let Some(list) = files.iter().find(|file| file.path == LIST) else {
            return (known, findings);
        };
        for (index, text) in list.text.lines().enumerate() {
            let edge = |of: &str, from: &str, to: &str| Edge {
                of: of.into(),
                from: from.into(),
                to: to.into(),
            };
            let seen = Seen { path: LIST.into(), line: index + 1, name: text.into() };
            match text.split_whitespace().collect::<Vec<_>>()[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["order", of, ref modules @ ..] => {
                    let order = known.orders.entry(of.into()).or_default();
                    order.extend(modules.iter().map(|module| (*module).to_owned()));
                }
                [of, from, "->", to] => drop(known.paths.insert(edge(of, from, to), seen)),
                [of, from, "=>", to] => drop(known.calls.insert(edge(of, from, to), seen)),
                _ => findings.push(seen.finding(format!("'{text}' is no order and no edge"))),
            }
        }
        (known, findings)
    }
}

impl Seen {
    fn finding(&self, what: String) -> Finding {
        Finding { path: self.path.clone(), line: self.line, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a crate with these files, and with this list.
    fn found(list: &str, files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| SourceFile::new(&format!("crates/c/src/{path}.rs"), text);
        let mut all: Vec<SourceFile> = files.iter().map(source).collect();
        all.push(SourceFile::new(LIST, list));
        let findings = check(&all);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    const A: &str = "crates/c/src/a.rs:1";
    const B: &str = "crates/c/src/b.rs:1";

    #[test]
    fn a_circle_of_two_is_found() {
        let circle = [("a", "use crate::b::B;"), ("b", "fn f() { super::a::g() }")];
        assert_eq!(found("", &circle), [A, B]);
        assert_eq!(found("c a -> b", &circle), [""; 0], "without it there is no circle");
        assert_eq!(found("order c a b\nc a -> b", &circle), [""; 0]);
        assert_eq!(found("order c a b", &circle), [A]);
        assert_eq!(found("order c a\norder c b", &circle), [A]);
        assert_eq!(found("", &[("a", "use crate::b::B;"), ("b", "")]), [""; 0]);
        let through_the_root =
            [("lib", "mod a; mod b; pub use b::B;"), ("a", "use crate::B;"), circle[1]];
        assert_eq!(found("", &through_the_root), [A, B]);
    }

    #[test]
    fn a_circle_of_three_is_found() {
        let text = |to: &str| format!("use crate::{{{to}}};");
        let (a, b, c) = (text("b::{self, X}"), text("c"), text("a::Y as Z"));
        let circle = [("a", a.as_str()), ("b", b.as_str()), ("c", c.as_str()), ("d", a.as_str())];
        assert_eq!(found("", &circle).len(), 3);
        assert_eq!(found("c c -> a", &circle), [""; 0]);
    }

    #[test]
    fn a_module_and_its_children_are_one() {
        let files = [
            ("a/mod", "mod b; use b::B; use self::b::C;"),
            ("a/b", "use super::A; use crate::a::D; use super::super::d::E;"),
            ("d", ""),
        ];
        assert_eq!(found("", &files), [""; 0]);
        let back = [files[0], files[1], ("d", "use crate::a::F;")];
        assert_eq!(found("", &back), ["crates/c/src/a/b.rs:1", "crates/c/src/d.rs:1"]);
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let test = "#[cfg(test)]\nmod tests {\n use crate::b::B;\n fn f() { crate::b::g() }\n}";
        let b = ("b", "use crate::a::A;");
        assert_eq!(found("", &[("a", test), b]), [""; 0]);
        assert_eq!(found("", &[("a/tests", "use crate::b::B;"), b]), [""; 0]);
        assert_eq!(found("", &[("a_tests", "use crate::b::B;"), b]), [""; 0]);
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
            assert_eq!(found("", &[("a", a), ("b", b)]), [A, B], "{b}");
            assert_eq!(found("c a => b", &[("a", a), ("b", b)]), [""; 0], "{b}");
        }
        let a = format!("struct JobFile; {a}");
        let a = a.as_str();
        for b in [
            "impl JobFile { fn b() {} } impl Other { fn c(&self) { self.a() } }",
            "impl JobFile { fn b() {} } fn f(other: Other) { other.a() }",
            "struct JobFile; impl JobFile { fn b(&self) { self.a() } fn a(&self) {} }",
        ] {
            assert_eq!(found("", &[("a", a), ("b", b)]), [""; 0], "{b}");
        }
        let mixed = ("b", "use crate::a::A; impl JobFile { fn b() {} }");
        assert_eq!(found("", &[("a", a), mixed]), [B, A], "a path and a call are a circle");
    }

    #[test]
    fn an_edge_that_is_gone_leaves_the_list() {
        let line = |line: usize| format!("{LIST}:{line}");
        let files = [("a", "use crate::b::B;"), ("b", "")];
        assert_eq!(found("# gone\nc b -> a", &files), [line(2)]);
        assert_eq!(found("order c a b\nc a -> b", &files), [""; 0]);
        assert_eq!(found("order c a b\nc a -> b\nc a => b", &files), [line(3)]);
        assert_eq!(found("order c b a\nc a -> b", &files), [line(2)], "it points down");
        assert_eq!(found("c a -> b", &files), [line(1)], "it is in no circle");
        assert_eq!(found("d a -> b", &files), [line(1)], "there is no such crate");
    }

    #[test]
    fn every_module_has_its_place_in_the_order() {
        let files = [("a", ""), ("b/x", "")];
        assert_eq!(found("order c a b", &files), [""; 0]);
        assert_eq!(found("order c a", &files).len(), 1);
        assert_eq!(found("order c a b d", &files).len(), 1);
        assert_eq!(found("order c a b\nc a <- b", &files), [format!("{LIST}:2")]);
    }
}
