//! A checkpoint's weights, packed for the kernels.

use penstock_formats::{Checkpoint, DType, TensorView};
use penstock_kernels::{ActForm, Cpu, Form, Linear, Packed};

use crate::error::DecoderError;
use crate::options::Numerics;
use crate::source::{TensorRows, stored_row};
use crate::spec::{DecoderSpec, RopeScaling, WeightNames};

/// One decoder layer.
pub(crate) struct Layer {
    pub(crate) attn_norm: Vec<f32>,
    /// Query, key and value projections side by side.
    pub(crate) qkv: Linear,
    /// Per-head norms of queries and keys.
    pub(crate) qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    pub(crate) o: Linear,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) gate: Packed,
    pub(crate) up: Packed,
    pub(crate) down: Linear,
}

/// All weights.
pub(crate) struct Model {
    pub(crate) spec: DecoderSpec,
    /// Token embedding; the head too when it is tied.
    pub(crate) embed: Linear,
    pub(crate) head: Option<Linear>,
    pub(crate) final_norm: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
    /// Divisors of the rotary frequencies from the checkpoint.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

impl Model {
    /// Packs every tensor the spec implies.
    ///
    /// # Errors
    /// A tensor is missing, damaged or of another shape.
    pub(crate) fn load(
        cpu: &Cpu,
        checkpoint: &Checkpoint,
        spec: DecoderSpec,
        names: &WeightNames,
        numerics: Numerics,
    ) -> Result<Self, DecoderError> {
        let loader = Loader {
            cpu,
            checkpoint,
            names,
            numerics,
        };
        let (hidden, vocab) = (spec.hidden, spec.vocab);
        let layers = (0..spec.layers)
            .map(|i| loader.layer(&spec, i))
            .collect::<Result<_, _>>()?;
        let head = match (&names.head, spec.tied_embeddings) {
            (Some(name), false) => Some(loader.linear(&[(name.clone(), vocab)], hidden, None)?),
            (None, false) => {
                return Err(DecoderError::Spec(
                    "the head is not tied, but names.head is null".into(),
                ));
            }
            (_, true) => None,
        };
        let rope_factors = match (&names.rope_factors, &spec.rope.scaling) {
            (Some(name), _) => Some(loader.vector(name, spec.attention.head_dim / 2)?),
            (None, Some(RopeScaling::Factors)) => {
                return Err(DecoderError::Spec(
                    "rope scaling by factors needs names.rope_factors, which is null".into(),
                ));
            }
            (None, _) => None,
        };
        Ok(Self {
            embed: loader.linear(&[(names.embed.clone(), vocab)], hidden, None)?,
            head,
            final_norm: loader.vector(&names.final_norm, hidden)?,
            layers,
            rope_factors,
            spec,
        })
    }

    /// The output head.
    pub(crate) fn head(&self) -> &Linear {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Every packed matrix.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Packed> {
        let layers = self.layers.iter().flat_map(|l| {
            let linears = [&l.qkv, &l.o, &l.down].into_iter().flat_map(|l| &l.parts);
            linears.chain([&l.gate, &l.up])
        });
        layers
            .chain(&self.embed.parts)
            .chain(self.head.iter().flat_map(|h| &h.parts))
    }
}

struct Loader<'a> {
    cpu: &'a Cpu,
    checkpoint: &'a Checkpoint,
    names: &'a WeightNames,
    numerics: Numerics,
}

impl Loader<'_> {
    fn layer(&self, spec: &DecoderSpec, i: usize) -> Result<Layer, DecoderError> {
        let (n, a) = (&self.names.layer, &spec.attention);
        let at = |name: &String| name.replace("{i}", &i.to_string());
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let order = self.names.rope_rows_interleaved.then_some(a.head_dim);
        let mut qkv = self.linear(
            &[(at(&n.q), q), (at(&n.k), kv), (at(&n.v), kv)],
            spec.hidden,
            order,
        )?;
        if a.qkv_bias {
            let mut bias =
                in_half_split_order(self.bias(n.q_bias.as_ref(), "q_bias", i, q)?, order);
            bias.extend(in_half_split_order(
                self.bias(n.k_bias.as_ref(), "k_bias", i, kv)?,
                order,
            ));
            bias.extend(self.bias(n.v_bias.as_ref(), "v_bias", i, kv)?);
            qkv.bias = Some(bias);
        }
        let mut o = self.linear(&[(at(&n.o), spec.hidden)], q, None)?;
        if a.out_bias {
            o.bias = Some(self.bias(n.o_bias.as_ref(), "o_bias", i, spec.hidden)?);
        }
        let qk_norm = if a.qk_norm {
            let q = self.bias(n.q_norm.as_ref(), "q_norm", i, a.head_dim)?;
            Some((q, self.bias(n.k_norm.as_ref(), "k_norm", i, a.head_dim)?))
        } else {
            None
        };
        let inner = spec.mlp.intermediate;
        let mut gate_up = self
            .linear(
                &[(at(&n.gate), inner), (at(&n.up), inner)],
                spec.hidden,
                None,
            )?
            .parts;
        let (Some(up), Some(gate)) = (gate_up.pop(), gate_up.pop()) else {
            return Err(DecoderError::Spec("gate and up projections".into()));
        };
        let layer = Layer {
            attn_norm: self.vector(&at(&n.attn_norm), spec.hidden)?,
            qkv,
            qk_norm,
            o,
            mlp_norm: self.vector(&at(&n.mlp_norm), spec.hidden)?,
            gate,
            up,
            down: self.linear(&[(at(&n.down), spec.hidden)], inner, None)?,
        };
        // A large checkpoint and its packed form are never both resident.
        self.checkpoint.release();
        Ok(layer)
    }

    /// Packs matrices over the same `k` inputs, (name, output features). With `order`, the first two are queries and keys whose rows are
    /// interleaved in heads of that size.
    fn linear(
        &self,
        parts: &[(String, usize)],
        k: usize,
        order: Option<usize>,
    ) -> Result<Linear, DecoderError> {
        let views = parts
            .iter()
            .map(|(name, n)| self.shaped(name, &[*n, k]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut forms: Vec<Form> = views.iter().map(|v| self.numerics.form(v.dtype)).collect();
        if forms
            .iter()
            .any(|f| ActForm::of(*f) != ActForm::of(forms[0]))
        {
            // Matrices over the same activations must agree on their form: the unquantised ones are brought to 8 bits.
            forms
                .iter_mut()
                .filter(|f| ActForm::of(**f) != ActForm::Int8)
                .for_each(|f| *f = Form::W8);
        }
        let packed = views
            .into_iter()
            .zip(forms)
            .enumerate()
            .map(|(i, (view, form))| {
                let (n, interleaved) = (view.rows(), order.filter(|_| i < 2));
                Packed::pack(
                    self.cpu.pool(),
                    form,
                    n,
                    k,
                    &TensorRows { view, interleaved },
                )
            });
        Ok(Linear {
            parts: packed.collect(),
            bias: None,
        })
    }

    fn bias(
        &self,
        name: Option<&String>,
        role: &str,
        i: usize,
        n: usize,
    ) -> Result<Vec<f32>, DecoderError> {
        let name = name.ok_or_else(|| {
            DecoderError::Spec(format!("the spec needs names.layer.{role}, which is null"))
        })?;
        self.vector(&name.replace("{i}", &i.to_string()), n)
    }

    fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>, DecoderError> {
        let view = self.shaped(name, &[n])?;
        let mut out = vec![0.0; n];
        view.dequantize_row(0, &mut out);
        Ok(out)
    }

    fn shaped(&self, name: &str, expected: &[usize]) -> Result<TensorView<'_>, DecoderError> {
        let view = self.checkpoint.tensor(name)?;
        if view.shape != expected {
            let (name, found, expected) = (name.to_owned(), view.shape.clone(), expected.to_vec());
            return Err(DecoderError::Shape {
                name,
                found,
                expected,
            });
        }
        Ok(view)
    }
}

/// A bias whose items stand in the order of their matrix's rows.
fn in_half_split_order(bias: Vec<f32>, interleaved: Option<usize>) -> Vec<f32> {
    (0..bias.len())
        .map(|row| bias[stored_row(row, interleaved)])
        .collect()
}

impl Numerics {
    /// The weight form for a tensor stored as `dtype`.
    fn form(self, dtype: DType) -> Form {
        match self {
            Self::Exact => Form::F32,
            Self::Int8 => Form::W8,
            Self::Int4 => Form::W4,
            Self::AsStored { floats } => match dtype {
                DType::Q4_0 | DType::Q4_1 | DType::Q4K => Form::W4,
                DType::Q8_0 | DType::Q5K | DType::Q6K => Form::W8,
                DType::F32 | DType::F16 | DType::BF16 => floats,
            },
        }
    }
}
