"""The demo behind `turnloom demo`: a whole asynchronous training on a CPU, small and with nothing pretended.

task        what is asked, what the tool answers, what is rewarded
model       the tiny Qwen3, its tokenizer, its warm start
policy      the policy server, which samples
agent       the agent server, which answers `POST /run` as NeMo Gym's agents do
servers     the process of these two
weights     the trainer's weights to the policy server, over TCP
training    TRL's trainer and worker, and what they report
progress    the one bar
guard       Ctrl-C, and a run that stands still
report      what a run leaves: the plot, the figures, the transcripts
run         all of it, in order
"""
