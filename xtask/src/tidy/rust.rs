//! Rust as the rules need it: names with their lines, functions with their length, test regions.
//!
//! Names come from the tokens, so that comments and strings do not count and the inside of macros
//! does; imports, functions, impl blocks and test regions come from the parsed file.
use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};
use std::ops::RangeInclusive;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// How a name is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// `a::b`, imported or in an expression or type.
    Path,
    /// `a::b(…)`; the same name is there as a path too.
    Call,
    /// `a::b!`.
    Macro,
    /// `.a()`, without arguments.
    BareMethod,
    /// `a.b(…)`, with any arguments; of a longer expression, the last name before the dot.
    MethodOf,
    /// `#[a]`.
    Attribute,
}

/// One name in the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Word {
    /// Its line, counting from 1.
    pub line: usize,
    /// How it is used.
    pub used_as: Use,
    /// The segments joined by `::`; for [`Use::MethodOf`] by a dot.
    pub name: String,
}

/// A method or associated function of an impl block without a trait.
#[derive(Debug, PartialEq, Eq)]
pub struct Method {
    /// The last name of the type.
    pub of: String,
    /// Its name.
    pub name: String,
    /// Where `fn` stands.
    pub line: usize,
}

/// A struct or enum.
#[derive(Debug, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub line: usize,
    /// The number of its named fields; an enum has none.
    pub fields: usize,
}

/// A function with a body.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Where `fn` stands.
    pub line: usize,
    /// Lines from there to the closing brace.
    pub length: usize,
}

/// A parsed file.
#[derive(Debug)]
pub struct RustSource {
    /// All names, in order, each once a line.
    pub words: Vec<Word>,
    /// All functions.
    pub functions: Vec<Function>,
    /// All structs and enums.
    pub types: Vec<Type>,
    /// The methods of all types, also of other files.
    pub methods: Vec<Method>,
    impls: Vec<(RangeInclusive<usize>, String)>,
    tests: Vec<RangeInclusive<usize>>,
}

impl RustSource {
    /// Parses a file.
    ///
    /// # Errors
    /// Where and why it is not Rust.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display, line: usize| format!("line {line}: {error}");
        let tokens: TokenStream =
            text.parse().map_err(|e: proc_macro2::LexError| fail(&e, e.span().start().line))?;
        let parsed: syn::File =
            syn::parse_file(text).map_err(|e| fail(&e, e.span().start().line))?;
        let mut words = Vec::new();
        collect_words(tokens, &mut words);
        let mut items = Items { words, ..Items::default() };
        items.visit_file(&parsed);
        let Items { mut words, functions, types, methods, impls, tests } = items;
        words.sort();
        words.dedup();
        Ok(Self { words, functions, types, methods, impls, tests })
    }

    /// The type whose impl block, with or without a trait, has this line.
    pub fn receiver(&self, line: usize) -> Option<&str> {
        let mut around = self.impls.iter().filter(|(lines, _)| lines.contains(&line));
        around.next_back().map(|(_, of)| of.as_str())
    }

    /// Whether a line belongs to `#[test]` or `#[cfg(test)]` code.
    pub fn in_test(&self, line: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&line))
    }
}

/// Splits a token stream into names, inside groups too.
fn collect_words(tokens: TokenStream, words: &mut Vec<Word>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < trees.len() {
        let line = trees[at].span().start().line;
        let mut word = |used_as, name: String| words.push(Word { line, used_as, name });
        match &trees[at] {
            TokenTree::Ident(_) => {
                let (name, next) = path_at(&trees, at);
                let after_dot = at > 0 && is_punct(&trees[at - 1], '.');
                let bang = trees.get(next).is_some_and(|t| is_punct(t, '!'));
                let group_after = matches!(trees.get(next + 1), Some(TokenTree::Group(_)));
                if bang && group_after && name != "macro_rules" {
                    word(Use::Macro, name);
                } else if after_dot {
                    // A field or a method; `await` is a keyword that looks like a field.
                    if name == "await" {
                        word(Use::Path, name);
                    } else if trees.get(next).is_some_and(is_parenthesis) {
                        if let Some(of) = name_before(&trees[..at - 1]) {
                            word(Use::MethodOf, format!("{of}.{name}"));
                        }
                        if trees.get(next).is_some_and(is_empty_parenthesis) {
                            word(Use::BareMethod, name);
                        }
                    }
                } else {
                    if trees.get(next).is_some_and(is_parenthesis) {
                        word(Use::Call, name.clone());
                    }
                    // `use dmover_sys::{…}`: the parts count, not the name of the crate.
                    let opens_list = next == at + 1 && starts_use_list(&trees[next..]);
                    if !opens_list {
                        word(Use::Path, name);
                    }
                }
                at = next;
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let inner = usize::from(trees.get(at + 1).is_some_and(|t| is_punct(t, '!')));
                if let Some(TokenTree::Group(group)) = trees.get(at + 1 + inner) {
                    for name in attribute_names(group) {
                        word(Use::Attribute, name);
                    }
                }
                at += 1;
            }
            TokenTree::Group(group) => {
                collect_words(group.stream(), words);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// The path that starts at an identifier, and the place after it.
fn path_at(trees: &[TokenTree], mut at: usize) -> (String, usize) {
    let mut name = trees[at].to_string();
    while let [TokenTree::Punct(first), TokenTree::Punct(second), TokenTree::Ident(segment), ..] =
        &trees[at + 1..]
    {
        if first.as_char() != ':' || first.spacing() != Spacing::Joint || second.as_char() != ':' {
            break;
        }
        name = format!("{name}::{segment}");
        at += 3;
    }
    (name, at + 1)
}

/// The last name of an expression: `b` of `a.b`, `a.b?` and `a.b(…)`.
fn name_before(trees: &[TokenTree]) -> Option<String> {
    let skipped = |tree: &TokenTree| is_punct(tree, '?') || is_parenthesis(tree);
    let last = trees.iter().rev().find(|tree| !skipped(tree))?;
    if let TokenTree::Ident(name) = last { Some(name.to_string()) } else { None }
}

/// Whether `::{` follows.
fn starts_use_list(trees: &[TokenTree]) -> bool {
    matches!(trees, [first, second, TokenTree::Group(_), ..]
        if is_punct(first, ':') && is_punct(second, ':'))
}

/// The attribute's own name, and those that a `cfg_attr` may add.
fn attribute_names(group: &Group) -> Vec<String> {
    if group.delimiter() != Delimiter::Bracket {
        return Vec::new();
    }
    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Ident(name), TokenTree::Group(inner)] if *name == "cfg_attr" => {
            inner.stream().into_iter().filter_map(as_identifier).collect()
        }
        [TokenTree::Ident(name), ..] => vec![name.to_string()],
        _ => Vec::new(),
    }
}

fn as_identifier(tree: TokenTree) -> Option<String> {
    if let TokenTree::Ident(name) = tree { Some(name.to_string()) } else { None }
}

fn is_punct(tree: &TokenTree, sign: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == sign)
}

fn is_parenthesis(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis)
}

fn is_empty_parenthesis(tree: &TokenTree) -> bool {
    is_parenthesis(tree) && matches!(tree, TokenTree::Group(group) if group.stream().is_empty())
}

/// What the parsed items tell.
#[derive(Default)]
struct Items {
    words: Vec<Word>,
    functions: Vec<Function>,
    types: Vec<Type>,
    methods: Vec<Method>,
    impls: Vec<(RangeInclusive<usize>, String)>,
    tests: Vec<RangeInclusive<usize>>,
}

impl Items {
    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (first, last) = (signature.span().start().line, body.span().end().line);
        let name = signature.ident.to_string();
        self.functions.push(Function { name, line: first, length: last - first + 1 });
    }

    fn defined(&mut self, name: &syn::Ident, fields: usize) {
        self.types.push(Type { name: name.to_string(), line: name.span().start().line, fields });
    }

    fn note_test(&mut self, attributes: &[syn::Attribute], node: &impl Spanned) {
        if attributes.iter().any(marks_test) {
            self.tests.push(node.span().start().line..=node.span().end().line);
        }
    }

    /// Spells out the paths that a `use` brings in.
    fn import(&mut self, prefix: &str, tree: &syn::UseTree) {
        let join = |name: &syn::Ident| match prefix {
            "" => name.to_string(),
            _ if name == "self" => prefix.to_owned(),
            _ => format!("{prefix}::{name}"),
        };
        let name = match tree {
            syn::UseTree::Path(path) => return self.import(&join(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(prefix, tree));
            }
            syn::UseTree::Name(name) => join(&name.ident),
            syn::UseTree::Rename(name) => join(&name.ident),
            syn::UseTree::Glob(_) => format!("{prefix}::*"),
        };
        self.words.push(Word { line: tree.span().start().line, used_as: Use::Path, name });
    }
}

/// `#[test]` and `#[cfg(test)]`, also `#[cfg(all(test, …))]`, but not `#[cfg(not(test))]`.
fn marks_test(attribute: &syn::Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let mut words = Vec::new();
    if let (true, syn::Meta::List(list)) = (attribute.path().is_ident("cfg"), &attribute.meta) {
        collect_words(list.tokens.clone(), &mut words);
    }
    words.iter().any(|w| w.name == "test") && !words.iter().any(|w| w.name == "not")
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        self.note_test(&node.attrs, node);
        visit::visit_item_mod(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.note_test(&node.attrs, node);
        self.function(&node.sig, &node.block);
        visit::visit_item_fn(self, node);
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        self.note_test(&node.attrs, node);
        if let Some(of) = name_of(&node.self_ty) {
            self.impls.push((node.span().start().line..=node.span().end().line, of.clone()));
            if node.trait_.is_none() {
                self.methods.extend(methods_of(&of, node));
            }
        }
        visit::visit_item_impl(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.note_test(&node.attrs, node);
        self.function(&node.sig, &node.block);
        visit::visit_impl_item_fn(self, node);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(body) = &node.default {
            self.function(&node.sig, body);
        }
        visit::visit_trait_item_fn(self, node);
    }

    fn visit_item_struct(&mut self, node: &'ast syn::ItemStruct) {
        let fields = match &node.fields {
            syn::Fields::Named(fields) => fields.named.len(),
            _ => 0,
        };
        self.defined(&node.ident, fields);
        visit::visit_item_struct(self, node);
    }

    fn visit_item_enum(&mut self, node: &'ast syn::ItemEnum) {
        self.defined(&node.ident, 0);
        visit::visit_item_enum(self, node);
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        self.note_test(&node.attrs, node);
        self.import("", &node.tree);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        functions_in_macro(node.tokens.clone(), &mut self.functions);
    }
}

/// The last name of a type; `None` for tuples, slices and the like.
fn name_of(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        syn::Type::Reference(reference) => name_of(&reference.elem),
        _ => None,
    }
}

/// The functions of an impl block.
fn methods_of(of: &str, block: &syn::ItemImpl) -> Vec<Method> {
    let signature = |item: &syn::ImplItem| match item {
        syn::ImplItem::Fn(function) => {
            let (name, line) = (function.sig.ident.to_string(), function.sig.span().start().line);
            Some(Method { of: of.to_owned(), name, line })
        }
        _ => None,
    };
    block.items.iter().filter_map(signature).collect()
}

/// Functions in the body of a macro, which is not parsed: `fn NAME … {…}`.
fn functions_in_macro(tokens: TokenStream, functions: &mut Vec<Function>) {
    let mut open: Option<(String, usize)> = None;
    let mut previous = String::new();
    for tree in tokens {
        let line = tree.span().start().line;
        match &tree {
            TokenTree::Ident(name) if previous == "fn" => open = Some((name.to_string(), line)),
            TokenTree::Punct(punct) if punct.as_char() == ';' => open = None,
            TokenTree::Group(group) => {
                // Any other group belongs to the signature; the body is still to come.
                if group.delimiter() == Delimiter::Brace
                    && let Some((name, first)) = open.take()
                {
                    let length = group.span_close().end().line - first + 1;
                    functions.push(Function { name, line: first, length });
                }
                functions_in_macro(group.stream(), functions);
            }
            _ => {}
        }
        previous = tree.to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, used_as: Use) -> Vec<String> {
        let source = RustSource::parse(text).unwrap();
        source.words.into_iter().filter(|w| w.used_as == used_as).map(|w| w.name).collect()
    }

    #[test]
    fn imports_are_spelt_out() {
        let names = words("use std::{fs::{self, File as F}, io::*};", Use::Path);
        for name in ["std::fs", "std::fs::File", "std::io::*"] {
            assert!(names.contains(&name.to_owned()), "{name} is not in {names:?}");
        }
        assert!(!names.contains(&"std".to_owned()), "{names:?}");
    }

    #[test]
    fn names_inside_macros_count_and_strings_and_comments_do_not() {
        let text = "// a::c()\nfn f() { vec![b::d(\"e::f\")]; g::h!(i); x.y(); x.z(1); }";
        assert!(words(text, Use::Path).contains(&"b::d".to_owned()));
        assert!(!words(text, Use::Path).iter().any(|w| w == "a::c" || w == "e::f"));
        assert_eq!(words(text, Use::Macro), ["g::h", "vec"]);
        assert_eq!(words(text, Use::BareMethod), ["y"]);
    }

    #[test]
    fn methods_have_receivers() {
        let text = "impl a::S<'_> {\n fn b(&self) {\n self.c(1); f(d.e?.g()); }\n}\nenum T {}
impl T for &S {\n fn h(&self) { format!(\"{}\", self.i().j(2)) }\n}\nfn k() {}";
        assert_eq!(words(text, Use::MethodOf), ["e.g", "self.c", "i.j", "self.i"]);
        let source = RustSource::parse(text).unwrap();
        assert_eq!(source.types, [Type { name: "T".into(), line: 5, fields: 0 }]);
        assert_eq!(source.methods, [Method { of: "S".into(), name: "b".into(), line: 2 }]);
        let receivers: Vec<bool> = (1..=9).map(|line| source.receiver(line) == Some("S")).collect();
        assert_eq!(receivers, [true, true, true, true, false, true, true, true, false]);
    }

    #[test]
    fn attributes_are_named() {
        let text = "#[ignore = \"slow\"] fn f() {}\n#[cfg_attr(miri, ignore)] fn g() {}";
        let names = words(text, Use::Attribute);
        assert_eq!(names, ["ignore", "ignore", "miri"]);
    }

    #[test]
    fn test_regions_are_found() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t {\n fn b() {}\n}\n#[cfg(not(test))]\nfn c() {}";
        let source = RustSource::parse(text).unwrap();
        let lines: Vec<usize> = (1..=7).filter(|line| source.in_test(*line)).collect();
        assert_eq!(lines, [2, 3, 4, 5]);
    }

    #[test]
    fn functions_are_measured_also_in_traits_impls_and_macros() {
        let text = "trait T { fn none(); fn two() {\n} }\nimpl S { fn three() {\n\n} }
macro_rules! m { () => { fn four(x: u8) -> u8 {\n\n\n} } }";
        let source = RustSource::parse(text).unwrap();
        let found: Vec<_> = source.functions.iter().map(|f| (f.name.as_str(), f.length)).collect();
        assert_eq!(found, [("two", 2), ("three", 3), ("four", 4)]);
    }
}
