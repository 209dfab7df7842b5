//! Implements `#[probe]`, which `corebeat-probe` re-exports.
//!
//! Place in the loop: observe; a part of `corebeat-probe`.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::Parser;
use syn::visit_mut::{self, VisitMut};
use syn::{
    AttrStyle, Error, Expr, ItemFn, LitStr, ReturnType, Type, parse_macro_input, parse_quote,
};

/// Instruments a function or method with a probe; see `corebeat_probe::probe`.
#[proc_macro_attribute]
pub fn probe(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    options(arguments)
        .and_then(|options| put(&options, function))
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// The options in `#[probe(...)]`.
struct Options {
    name: Option<LitStr>,
    timed: bool,
    /// Names and values of the fields to record.
    fields: Vec<(String, Expr)>,
}

fn options(arguments: TokenStream) -> Result<Options, Error> {
    let mut options = Options { name: None, timed: true, fields: Vec::new() };
    let parser = syn::meta::parser(|meta| {
        if meta.path.is_ident("untimed") {
            options.timed = false;
            Ok(())
        } else if meta.path.is_ident("name") {
            options.name = Some(meta.value()?.parse()?);
            Ok(())
        } else if meta.path.is_ident("fields") {
            meta.parse_nested_meta(|field| {
                let name = field.path.require_ident()?;
                let value = match field.value() {
                    Ok(value) => value.parse()?,
                    Err(_) => parse_quote!(#name),
                };
                options.fields.push((name.to_string(), value));
                Ok(())
            })
        } else {
            Err(meta.error(
                "unknown option: use probe(name = \"...\"), probe(untimed), or \
                 probe(fields(argument, name = expression))",
            ))
        }
    });
    parser.parse(arguments)?;
    Ok(options)
}

fn put(options: &Options, function: ItemFn) -> Result<proc_macro2::TokenStream, Error> {
    let ItemFn { attrs, vis, sig, block, .. } = function;
    if sig.constness.is_some() {
        return Err(Error::new_spanned(
            sig.constness,
            "a const fn cannot have a probe, because it may run in the compiler",
        ));
    }
    let (outer, inner): (Vec<_>, Vec<_>) =
        attrs.iter().partition(|a| matches!(a.style, AttrStyle::Outer));
    let timed = options.timed;
    let name = match &options.name {
        Some(name) => quote!(#name),
        // The path of an item in the function contains the path of the function, and the type of a
        // method.
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
    let (names, values): (Vec<_>, Vec<_>) = options.fields.iter().cloned().unzip();
    // Recorded before the call, because the call may consume the arguments.
    let fields = (!names.is_empty()).then(|| {
        quote! {
            if PROBE.is_on() {
                #(PROBE.field(#names, &#values);)*
            }
        }
    });
    let span = block.brace_token.span.join();
    let statements = &block.stmts;
    let body = if sig.asyncness.is_some() {
        quote_spanned!(span=> {
            #(#inner)*
            #declaration
            #fields
            PROBE.within(async move #block).await
        })
    } else if attrs.iter().any(|a| NOT_AS_A_CLOSURE.iter().any(|name| a.path().is_ident(name))) {
        quote_spanned!(span=> {
            #(#inner)*
            #declaration
            #fields
            let _entered = PROBE.enter();
            #(#statements)*
        })
    } else {
        let output = output_of_closure(&sig.output);
        // Inlined twice: without recording, and out of line for recorded calls.
        quote_spanned!(span=> {
            #(#inner)*
            #declaration
            #fields
            PROBE.call(#[inline(always)] move || #output { #(#statements)* })
        })
    };
    Ok(quote!(#(#outer)* #vis #sig #body))
}

/// A function with one of these attributes behaves differently as a closure.
const NOT_AS_A_CLOSURE: [&str; 2] = ["track_caller", "target_feature"];

/// The return type of a closure that contains the whole function: the return type of the function,
/// with `_` for `impl Trait`, which a closure cannot name.
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
    // A closure without a return type may return anything.
    if let ReturnType::Default = output { parse_quote!(-> ()) } else { output }
}
