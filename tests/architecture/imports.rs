//! Finds the imports of each file of `src`, without its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};

#[derive(Debug, Default)]
pub struct File {
    /// Other files of the project, as paths below `src`.
    pub uses: BTreeSet<String>,
    /// The first segments of all other paths: crates, and also types and other items that are in scope.
    pub crates: BTreeSet<String>,
}

type Module = Vec<String>;

/// Returns the imports of the files of `src`, by path below `src`. Files that are compiled only for tests are
/// omitted.
pub fn files() -> BTreeMap<String, File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = BTreeMap::new();
    read(&root, &root, &mut sources);
    // `main.rs` is a separate crate.
    let modules: BTreeMap<Module, String> = sources
        .keys()
        .filter(|path| *path != "main.rs")
        .map(|path| (module_of(path), path.clone()))
        .collect();
    let tests: BTreeSet<Module> = sources
        .iter()
        .flat_map(|(path, source)| test_modules(&source.items).map(|name| child(&module_of(path), &name)))
        .collect();
    let is_test = |module: &[String]| (1..=module.len()).any(|length| tests.contains(&module[..length]));
    let mut files = BTreeMap::new();
    for (path, source) in &sources {
        let module = module_of(path);
        if is_test(&module) {
            continue;
        }
        let mut reader = Reader { modules: &modules, module, file: File::default() };
        reader.visit_file(source);
        let mut file = reader.file;
        file.uses.remove(path);
        files.insert(path.clone(), file);
    }
    files
}

fn read(root: &Path, directory: &Path, sources: &mut BTreeMap<String, syn::File>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            read(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let source = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            sources.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), source);
        }
    }
}

/// Returns the module of a file: `a/b.rs` is `a::b`, and `lib.rs` is the root.
fn module_of(path: &str) -> Module {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

fn child(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |condition: syn::Path| condition.is_ident("test");
        attribute.path().is_ident("cfg") && attribute.parse_args().is_ok_and(is_test)
    })
}

fn test_modules(items: &[syn::Item]) -> impl Iterator<Item = String> {
    items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if is_for_tests(&module.attrs) => Some(name(&module.ident)),
        _ => None,
    })
}

/// Returns an identifier without `r#`.
fn name(ident: &Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

struct Reader<'a> {
    modules: &'a BTreeMap<Module, String>,
    module: Module,
    file: File,
}

impl Reader<'_> {
    /// Records a path. The longest prefix of the path that is a module determines the used file.
    fn path(&mut self, path: &[String]) {
        let Some(first) = path.first() else { return };
        let absolute: Module = match first.as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [&self.module, &path[1..]].concat(),
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                let Some(length) = self.module.len().checked_sub(up) else { return };
                [&self.module[..length], &path[up..]].concat()
            }
            // Checked before the name of the crate, because the module of the plugin `lb_linker` has the same name.
            _ if self.modules.contains_key(&child(&self.module, first)) => [&self.module, path].concat(),
            "lb_linker" => path[1..].to_vec(),
            _ => {
                self.file.crates.insert(first.clone());
                return;
            }
        };
        let file = (0..=absolute.len()).rev().find_map(|length| self.modules.get(&absolute[..length]));
        self.file.uses.extend(file.cloned());
    }

    fn tree(&mut self, tree: &syn::UseTree, path: &mut Module) {
        match tree {
            syn::UseTree::Path(part) => {
                path.push(name(&part.ident));
                self.tree(&part.tree, path);
                path.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, path)),
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                path.push(name(ident));
                self.path(path);
                path.pop();
            }
            _ => self.path(path),
        }
    }

    /// Records the paths in a macro's tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    path.push(name(&ident));
                }
                TokenTree::Group(group) => {
                    self.end_of_path(&mut path);
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.end_of_path(&mut path),
            }
            colons = 0;
        }
        self.end_of_path(&mut path);
    }

    /// Records the identifiers read so far if they form a path, which has at least two segments; then clears them.
    fn end_of_path(&mut self, path: &mut Module) {
        if path.len() > 1 {
            self.path(path);
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let is_for_tests = match item {
            syn::Item::Const(item) => is_for_tests(&item.attrs),
            syn::Item::Fn(item) => is_for_tests(&item.attrs),
            syn::Item::Impl(item) => is_for_tests(&item.attrs),
            syn::Item::Mod(item) => is_for_tests(&item.attrs),
            syn::Item::Struct(item) => is_for_tests(&item.attrs),
            syn::Item::Use(item) => is_for_tests(&item.attrs),
            _ => false,
        };
        if !is_for_tests {
            visit::visit_item(self, item);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let is_for_tests = match statement {
            syn::Stmt::Macro(statement) => is_for_tests(&statement.attrs),
            syn::Stmt::Expr(syn::Expr::Call(call), _) => is_for_tests(&call.attrs),
            _ => false,
        };
        if !is_for_tests {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(name(&item.ident));
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Module = path.segments.iter().map(|segment| name(&segment.ident)).collect();
        if parts.len() > 1 {
            self.path(&parts);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.tokens(invocation.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.tokens(list.tokens.clone());
    }

    // `pub(in crate::…)` is no import.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}
