//! `#[probe]` for `corebeat-probe`, which exports it.
//!
//! Place in the loop: observe; a part of `corebeat-probe`.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::Parser;
use syn::{AttrStyle, Error, ItemFn, LitStr, parse_macro_input};

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
    let body = if sig.asyncness.is_some() {
        quote_spanned!(block.brace_token.span.join()=> { #(#inner)* #declaration PROBE.within(async move #block).await })
    } else {
        let statements = &block.stmts;
        quote_spanned!(block.brace_token.span.join()=> {
            #(#inner)*
            #declaration
            let _entered = PROBE.enter();
            #(#statements)*
        })
    };
    Ok(quote!(#(#outer)* #vis #sig #body))
}
