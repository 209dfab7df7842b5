//! `#[probe]` for `corebeat-probe`, which exports it.
//!
//! Place in the loop: observe; a part of `corebeat-probe`.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::Parser;
use syn::visit_mut::{self, VisitMut};
use syn::{AttrStyle, Error, ItemFn, LitStr, ReturnType, Type, parse_macro_input, parse_quote};

/// Puts a probe on a function or method. `corebeat_probe::probe` says how it is used.
#[proc_macro_attribute]
pub fn probe(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    options(arguments)
        .and_then(|options| put(&options, function))
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// What `#[probe(...)]` says.
struct Options {
    name: Option<LitStr>,
    timed: bool,
}

fn options(arguments: TokenStream) -> Result<Options, Error> {
    let mut options = Options { name: None, timed: true };
    let parser = syn::meta::parser(|meta| {
        if meta.path.is_ident("untimed") {
            options.timed = false;
            Ok(())
        } else if meta.path.is_ident("name") {
            options.name = Some(meta.value()?.parse()?);
            Ok(())
        } else {
            Err(meta.error("a probe knows probe(name = \"...\") and probe(untimed)"))
        }
    });
    parser.parse(arguments)?;
    Ok(options)
}

fn put(options: &Options, function: ItemFn) -> Result<proc_macro2::TokenStream, Error> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    if sig.constness.is_some() {
        return Err(Error::new_spanned(sig.constness, "a const fn has no probe: it may run in the compiler"));
    }
    let (outer, inner): (Vec<_>, Vec<_>) = attrs.iter().partition(|a| matches!(a.style, AttrStyle::Outer));
    let timed = options.timed;
    let name = match &options.name {
        Some(name) => quote!(#name),
        // The path of an item in here has the function's own in it, with the type for a method.
        None => quote!({
            struct Here;
            ::corebeat_probe::name_around(::core::any::type_name::<Here>())
        }),
    };
    let declaration = quote! {
        #[::corebeat_probe::linkme::distributed_slice(::corebeat_probe::PROBES)]
        #[linkme(crate = ::corebeat_probe::linkme)]
        static PROBE: ::corebeat_probe::Probe = ::corebeat_probe::Probe::new(
            { fn name() -> &'static str { #name } name },
            ::core::file!(),
            ::core::line!(),
            #timed,
        );
    };
    let span = block.brace_token.span.join();
    let statements = &block.stmts;
    let body = if sig.asyncness.is_some() {
        quote_spanned!(span=> { #(#inner)* #declaration PROBE.within(async move #block).await })
    } else if attrs.iter().any(|a| NOT_AS_A_CLOSURE.iter().any(|name| a.path().is_ident(name))) {
        quote_spanned!(span=> { #(#inner)* #declaration let _entered = PROBE.enter(); #(#statements)* })
    } else {
        let output = output_of_closure(&sig.output);
        // Inlined twice: once as it is, and once out of the way, for calls that are recorded.
        quote_spanned!(span=> {
            #(#inner)*
            #declaration
            PROBE.call(#[inline(always)] move || #output { #(#statements)* })
        })
    };
    Ok(quote!(#(#outer)* #vis #sig #body))
}

/// A function with one of these does something else as a closure.
const NOT_AS_A_CLOSURE: [&str; 2] = ["track_caller", "target_feature"];

/// What a closure returns that is all of a function: what the function returns, but for `impl Trait`, which closures cannot
/// say, and need not.
fn output_of_closure(output: &ReturnType) -> ReturnType {
    struct Opaque;

    impl VisitMut for Opaque {
        fn visit_type_mut(&mut self, of: &mut Type) {
            if let Type::ImplTrait(_) = of {
                *of = parse_quote!(_);
            }
            visit_mut::visit_type_mut(self, of);
        }
    }

    let mut output = output.clone();
    Opaque.visit_return_type_mut(&mut output);
    // A closure without one may return anything.
    if let ReturnType::Default = output { parse_quote!(-> ()) } else { output }
}
