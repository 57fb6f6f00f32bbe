//! A checkpoint's weights, packed for the kernels.

use std::ops::Range;

use penstock_formats::{Checkpoint, DType, TensorView};
use penstock_kernels::{ActForm, Cpu, Form, HeadShape, Linear, Packed};

use crate::error::DecoderError;
use crate::options::Numerics;
use crate::shard::{Inputs, Shard};
use crate::source::{TensorRows, stored_row};
use crate::spec::{DecoderSpec, RopeScaling, WeightNames};

/// Layers of the decoder that share one block table: all with full attention, or all with the same
/// window. Groups stand in the order of their first layers over the whole model, so that they are
/// the same list on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// This rank's layers in the group, counted over the whole model; may be empty.
    pub layers: Vec<usize>,
    /// Tokens that a token sees, itself included; `None` = all.
    pub window: Option<usize>,
}

/// One decoder layer.
pub(crate) struct Layer {
    /// KV group, and the layer's index among this rank's layers in it.
    pub(crate) kv_group: usize,
    pub(crate) kv_index: usize,
    /// Tokens that a token sees, itself included; `None` = all.
    pub(crate) window: Option<usize>,
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

/// The weights of one rank.
pub(crate) struct Model {
    pub(crate) spec: DecoderSpec,
    pub(crate) shard: Shard,
    /// Query heads of this rank.
    pub(crate) heads: HeadShape,
    /// What the attention's output projection reads.
    pub(crate) attended: Inputs,
    /// What the MLP's down projection reads.
    pub(crate) inner: Inputs,
    /// This rank's rows of the token embedding, where its stage embeds, and of the head, where it
    /// has one; a tied head is the embedding.
    embed: Option<Linear>,
    head: Option<Linear>,
    pub(crate) final_norm: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
    kv_groups: Vec<KvGroup>,
    /// Divisors of the rotary frequencies from the checkpoint.
    pub(crate) rope_factors: Option<Vec<f32>>,
}

impl Model {
    /// Packs this rank's part of every tensor the spec implies.
    ///
    /// # Errors
    /// A tensor is missing, damaged or of another shape.
    pub(crate) fn load(
        cpu: &Cpu,
        checkpoint: &Checkpoint,
        spec: DecoderSpec,
        names: &WeightNames,
        numerics: Numerics,
        shard: Shard,
    ) -> Result<Self, DecoderError> {
        let (inner, hidden) = (spec.mlp.intermediate, spec.hidden);
        let loader = Loader {
            cpu,
            checkpoint,
            names,
            numerics,
            spec: &spec,
            shard: &shard,
        };
        let kv_groups = kv_groups(&spec, shard.layers());
        let layers = shard
            .layers()
            .map(|i| loader.layer(i, &kv_groups))
            .collect::<Result<_, _>>()?;
        let has_head = shard.has_head();
        let head = match (&names.head, spec.tied_embeddings) {
            (Some(name), false) if has_head => Some(loader.vocabulary(name)?),
            (None, false) => {
                return Err(DecoderError::Spec(
                    "the head is not tied, but names.head is null".into(),
                ));
            }
            _ => None,
        };
        let embeds = shard.embeds() || has_head && spec.tied_embeddings;
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
            heads: shard.head_shape(&spec),
            attended: loader.attended(),
            inner: Inputs::around(shard.mlp_columns(), inner),
            embed: embeds
                .then(|| loader.vocabulary(&names.embed))
                .transpose()?,
            head,
            final_norm: loader.vector(&names.final_norm, hidden)?,
            layers,
            kv_groups,
            rope_factors,
            shard,
            spec,
        })
    }

    /// The KV groups of the model with this rank's layers in them.
    pub(crate) fn kv_groups(&self) -> &[KvGroup] {
        &self.kv_groups
    }

    /// This rank's part of the output head; `None` where another stage has it.
    pub(crate) fn head(&self) -> Option<&Linear> {
        let has_head = self.shard.has_head();
        let linear = self.head.as_ref().or(self.embed.as_ref());
        linear.filter(|_| has_head)
    }

    /// Writes the embedding of `token` if this rank has it, zeros if another has; `false` where
    /// another stage embeds.
    pub(crate) fn embed(&self, token: usize, out: &mut [f32]) -> bool {
        let (Some(embed), true) = (&self.embed, self.shard.embeds()) else {
            return false;
        };
        let own = self.shard.vocabulary();
        if own.contains(&token) {
            embed.parts[0].row_f32(token - own.start, out);
        } else {
            out.fill(0.0);
        }
        true
    }

    /// Every packed matrix.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Packed> {
        let layers = self.layers.iter().flat_map(|l| {
            let linears = [&l.qkv, &l.o, &l.down].into_iter().flat_map(|l| &l.parts);
            linears.chain([&l.gate, &l.up])
        });
        layers
            .chain(self.embed.iter().flat_map(|e| &e.parts))
            .chain(self.head.iter().flat_map(|h| &h.parts))
    }
}

/// The KV groups of `spec` with those of their layers that are in `own`.
fn kv_groups(spec: &DecoderSpec, own: Range<usize>) -> Vec<KvGroup> {
    let mut groups: Vec<KvGroup> = Vec::new();
    for layer in 0..spec.layers {
        let window = spec.window(layer);
        let group = match groups.iter_mut().find(|g| g.window == window) {
            Some(group) => group,
            None => groups.push_mut(KvGroup {
                layers: Vec::new(),
                window,
            }),
        };
        group.layers.extend(own.contains(&layer).then_some(layer));
    }
    groups
}

struct Loader<'a> {
    cpu: &'a Cpu,
    checkpoint: &'a Checkpoint,
    names: &'a WeightNames,
    numerics: Numerics,
    spec: &'a DecoderSpec,
    shard: &'a Shard,
}

/// Some rows of a stored matrix.
struct Rows {
    name: String,
    /// Rows in the file.
    whole: usize,
    own: Range<usize>,
}

impl Loader<'_> {
    fn vocabulary(&self, name: &str) -> Result<Linear, DecoderError> {
        let own = self.shard.vocabulary();
        let rows = Rows {
            name: name.to_owned(),
            whole: self.spec.vocab,
            own,
        };
        self.linear(&[rows], self.spec.hidden, None)
    }

    fn attended(&self) -> Inputs {
        let a = &self.spec.attention;
        Inputs::around(
            times(self.shard.query_heads(), a.head_dim),
            a.heads * a.head_dim,
        )
    }

    fn layer(&self, i: usize, kv_groups: &[KvGroup]) -> Result<Layer, DecoderError> {
        let (n, spec) = (&self.names.layer, self.spec);
        let a = &spec.attention;
        let at = |name: &String| name.replace("{i}", &i.to_string());
        let rows = |name: &String, whole: usize, own: &Range<usize>| Rows {
            name: at(name),
            whole,
            own: own.clone(),
        };
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let own_q = times(self.shard.query_heads(), a.head_dim);
        let own_kv = times(self.shard.kv_heads(spec), a.head_dim);
        let order = self.names.rope_rows_interleaved.then_some(a.head_dim);
        let mut qkv = self.linear(
            &[
                rows(&n.q, q, &own_q),
                rows(&n.k, kv, &own_kv),
                rows(&n.v, kv, &own_kv),
            ],
            spec.hidden,
            order,
        )?;
        if a.qkv_bias {
            let q = in_half_split_order(self.bias(n.q_bias.as_ref(), "q_bias", i, q)?, order);
            let k = in_half_split_order(self.bias(n.k_bias.as_ref(), "k_bias", i, kv)?, order);
            let v = self.bias(n.v_bias.as_ref(), "v_bias", i, kv)?;
            qkv.bias = Some([&q[own_q], &k[own_kv.clone()], &v[own_kv]].concat());
        }
        let mut o = self.columns(&at(&n.o), q, &self.attended())?;
        // The sum over the ranks takes the bias once.
        if a.out_bias && self.shard.rank == 0 {
            o.bias = Some(self.bias(n.o_bias.as_ref(), "o_bias", i, spec.hidden)?);
        }
        let qk_norm = if a.qk_norm {
            let q = self.bias(n.q_norm.as_ref(), "q_norm", i, a.head_dim)?;
            Some((q, self.bias(n.k_norm.as_ref(), "k_norm", i, a.head_dim)?))
        } else {
            None
        };
        let (inner, own) = (spec.mlp.intermediate, self.shard.mlp_columns());
        let mut gate_up = self
            .linear(
                &[rows(&n.gate, inner, &own), rows(&n.up, inner, &own)],
                spec.hidden,
                None,
            )?
            .parts;
        let (Some(up), Some(gate)) = (gate_up.pop(), gate_up.pop()) else {
            return Err(DecoderError::Spec("gate and up projections".into()));
        };
        let kv = kv_groups.iter().enumerate();
        let (kv_group, kv_index) = kv
            .filter_map(|(g, group)| Some((g, group.layers.iter().position(|&l| l == i)?)))
            .next()
            .unwrap_or_default();
        let layer = Layer {
            kv_group,
            kv_index,
            window: spec.window(i),
            attn_norm: self.vector(&at(&n.attn_norm), spec.hidden)?,
            qkv,
            qk_norm,
            o,
            mlp_norm: self.vector(&at(&n.mlp_norm), spec.hidden)?,
            gate,
            up,
            down: self.columns(&at(&n.down), inner, &Inputs::around(own, inner))?,
        };
        // A large checkpoint and its packed form are never both resident.
        self.checkpoint.release();
        Ok(layer)
    }

    /// Packs rows of matrices over the same `k` inputs. With `order`, the first two are queries and
    /// keys whose rows are interleaved in heads of that size.
    fn linear(
        &self,
        parts: &[Rows],
        k: usize,
        order: Option<usize>,
    ) -> Result<Linear, DecoderError> {
        let views = parts
            .iter()
            .map(|part| self.shaped(&part.name, &[part.whole, k]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut forms: Vec<Form> = views.iter().map(|v| self.numerics.form(v.dtype)).collect();
        if forms
            .iter()
            .any(|f| ActForm::of(*f) != ActForm::of(forms[0]))
        {
            // Matrices over the same activations must agree on their form: the unquantised ones are
            // brought to 8 bits.
            forms
                .iter_mut()
                .filter(|f| ActForm::of(**f) != ActForm::Int8)
                .for_each(|f| *f = Form::W8);
        }
        let packed =
            views
                .into_iter()
                .zip(parts)
                .zip(forms)
                .enumerate()
                .map(|(i, ((view, part), form))| {
                    let source = TensorRows {
                        view,
                        interleaved: order.filter(|_| i < 2),
                        first: part.own.start,
                        columns: 0..k,
                    };
                    Packed::pack(self.cpu.pool(), form, part.own.len(), k, &source)
                });
        Ok(Linear {
            parts: packed.collect(),
            bias: None,
        })
    }

    /// Packs all rows of a matrix over some of its `k` inputs.
    fn columns(&self, name: &str, k: usize, inputs: &Inputs) -> Result<Linear, DecoderError> {
        let view = self.shaped(name, &[self.spec.hidden, k])?;
        let form = self.numerics.form(view.dtype);
        let source = TensorRows {
            view,
            interleaved: None,
            first: 0,
            columns: inputs.columns.clone(),
        };
        let packed = Packed::pack(
            self.cpu.pool(),
            form,
            self.spec.hidden,
            inputs.len(),
            &source,
        );
        Ok(Linear {
            parts: vec![packed],
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

/// Items of heads.
fn times(heads: Range<usize>, head_dim: usize) -> Range<usize> {
    heads.start * head_dim..heads.end * head_dim
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
