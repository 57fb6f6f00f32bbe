/// A part of a model's output, in order. Consecutive events of one kind are chunks of the same
/// text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    Reasoning(String),
    Content(String),
    /// Calls are numbered from 0. `id` is empty if the model's format has none.
    ToolCallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// A chunk of the JSON text of the call's arguments.
    ToolCallArguments {
        index: usize,
        text: String,
    },
}

impl OutputEvent {
    /// Appends `later` to `events`, merged with the last event if both are chunks of the same text.
    pub fn append(events: &mut Vec<Self>, later: Self) {
        match (events.last_mut(), &later) {
            (Some(Self::Reasoning(text)), Self::Reasoning(more))
            | (Some(Self::Content(text)), Self::Content(more)) => text.push_str(more),
            (
                Some(Self::ToolCallArguments { index, text }),
                Self::ToolCallArguments {
                    index: next,
                    text: more,
                },
            ) if index == next => text.push_str(more),
            _ => events.push(later),
        }
    }
}
