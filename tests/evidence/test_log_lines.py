"""Lines, records and tables as trainers print them: the text, and all that is read in it."""

import json

import pytest

from mlxdoctor.evidence.training_log import Segment
from tests.evidence.log_tables import CLASSIC, ESC, NAN, Write, read, same, table

BAR = " 1%|▊ | {}/1000 [00:32<53:42,  3.25s/it, Loss={}, LR=1.00e-04]"
REDRAWN = [(10, "3.4"), (11, "3.4"), (20, "3.4"), (20, "3.1"), (21, "3.1"), (30, "nan")]
HISTORY = [
    {"epoch": 0.25, "grad_norm": 188.29, "learning_rate": 4.58e-05, "loss": 10.59, "step": 1},
    {"epoch": 0.5, "grad_norm": 88.1, "learning_rate": 4e-05, "loss": 8.59, "step": 2},
    {"eval_loss": 2.5, "eval_runtime": 3.0, "epoch": 0.5, "step": 2},
    {"train_loss": 9.1, "train_runtime": 10.0, "total_flos": 1.0, "epoch": 0.5, "step": 2},
]
UNTOUCHED = "Iter 1: Val loss 14.3\n"


def _coloured(iteration: int, loss: str, arrow: str, speed: str, tokens: str) -> str:
    return (
        f"  {ESC}[38;5;244m{iteration:>4}{ESC}[0m    {ESC}[1;32m{loss:>5} {arrow}{ESC}[0m"
        f"    {ESC}[1m{speed:>5}{ESC}[0m    {ESC}[38;5;244m{tokens:>6}{ESC}[0m\n"
    )


EDGE = f"{ESC}[34m│{ESC}[0m"
COLOURED = (
    f"{ESC}[34m╭─{ESC}[0m {ESC}[1;35mmlx_lm.lora{ESC}[0m {ESC}[34m──────────╮{ESC}[0m\n"
    f"{EDGE}    model           {ESC}[1mm/Qwen2.5-0.5B-4bit{ESC}[0m    {EDGE}\n"
    f"{EDGE}    type            {ESC}[1mlora · 16 layers · rank 8{ESC}[0m │\n"
    f"{EDGE}    optimizer       {ESC}[1madam · lr 1.0e-05{ESC}[0m   {EDGE}\n"
    f"{EDGE}    batch · iters   {ESC}[1m4 · 1,040{ESC}[0m           {EDGE}\n"
    f"{ESC}[34m╰───────────╯{ESC}[0m\n"
    "Trainable parameters: 0.048% (4.473M/9241.706M)\n"
    f"  {ESC}[1miter   train_loss     tok/s     tokens{ESC}[0m\n"
    f"  {ESC}[38;5;244m   1{ESC}[0m    {ESC}[1;35mval{ESC}[0m {ESC}[1m2.936{ESC}[0m    5.26s\n"
    + _coloured(10, "2.662", "▼", "161", "3.3k")
    + _coloured(20, "nan", "▲", "4,561", "6.6k")
    + f"\r{ESC}[2K{ESC}[1A"
    + _coloured(30, "12.346", "▲", "14,561", "1656.8k")
    + f"  {ESC}[1;32msave{ESC}[0m  {ESC}[38;5;244m0000030_adapters.safetensors{ESC}[0m\n"
    + _coloured(1040, "inf", "▲", "100", "2000.0k")
    + "train ██████████████████████████████ 100% · 1,040/1,040\n"
)
#: What it is -> its text, and each series in it: iterations and values; runs apart by a slash.
TEXTS = {
    "a peak shortened by hand": (
        "Iter 10: Train loss 2.5, Peak58.9 GB\n",
        "train_loss 10:2.5; peak_memory_gb 10:58.9",
    ),
    "perplexities": (
        "Epoch 1 | val PPL: 7.38905609893\nEpoch 2 | val PPL: 2.71828182846\n",
        "val_ppl 1:7.38905609893 2:2.71828182846; val_loss 1:2 2:1",
    ),
    "words before": ("STAGE A DONE: Iter 300: Train loss 0.02\n", "train_loss 300:0.02"),
    "not finite": (
        "".join(
            f"Iter {i}: Train loss {text}\n"
            for i, text in enumerate(["nan", "inf", "-inf", "Infinity", "NaN"])
        ),
        "train_loss 0:nan 1:inf 2:-inf 3:inf 4:nan",
    ),
    "colours inside values and links before them": (
        f"{ESC}[96mIter 1: Val loss 2.381, Val took 16.942s{ESC}[0m\n"
        f"{ESC}]8;;http://x{ESC}\\{ESC}]8;;{ESC}\\"
        f"Iter 10: Train loss {ESC}[92m3.43800000{ESC}[0m, It/sec 0.307\n"
        f"{ESC}]0;title\x07Iter 20: Train loss {ESC}[92m3.1{ESC}[0m, It/sec 0.3\n",
        "val_loss 1:2.381; val_seconds 1:16.942; train_loss 10:3.438 20:3.1; "
        "iterations_per_second 10:0.307 20:0.3; untouched 2.381",
    ),
    "a bar glued to a report": (
        " 1%|▊ | 10/1000 [00:32<53:42,  3.25s/it, Loss=9.0]Iter 10: Train loss 2.363\n",
        "train_loss 10:2.363",
    ),
    "a bar alone counts each report once": (
        "\r".join(BAR.format(*drawn) for drawn in REDRAWN) + "\n",
        "train_loss 10:3.4 20:3.1 30:nan; learning_rate 10:0.0001 20:0.0001 30:0.0001",
    ),
    "dictionaries win over the bar beside them": (
        "{'Step': 10, 'Loss': '3.4376', 'Tokens/sec': '302'}\n"
        " 1%|▊ | 10/1000 [00:32<53:42,  3.25s/it, Loss=3.4376, Tokens/sec=302]\n"
        "{'Step': 20, 'Loss': 'nan', 'Tokens/sec': '302'}\n",
        "train_loss 10:3.4376 20:nan; tokens_per_second 10:302 20:302",
    ),
    "the bar of a validation is no report": (
        "Calculating loss...: 100%|███████████| 25/25 [00:05<00:00,  4.75it/s]\n"
        "Iter 10: Train loss 2.363\n",
        "train_loss 10:2.363",
    ),
    "a line cut off before the total": (
        "Iter 10: Train loss 2.363\nloss 2.5 step 10/\n",
        "train_loss 10:2.363",
    ),
    "DPO": (
        "Iter 50: loss 0.045, chosen_r -0.169, rejected_r -0.240, acc 0.800, margin 0.071, "
        "lr 1.000e-05, it/s 0.678, tok/s 685.863, trained_tok 1,862, peak_mem 7.767GB",
        "train_loss 50:0.045; chosen_r 50:-0.169; rejected_r 50:-0.24; acc 50:0.8; "
        "margin 50:0.071; learning_rate 50:1e-05; iterations_per_second 50:0.678; "
        "tokens_per_second 50:685.863; trained_tokens 50:1862; peak_memory_gb 50:7.767",
    ),
    "gradient norms": (
        "Iter 50: Train loss 1.2680, LR 1.950e-06, grad_norm 177650662.281, skipped 1",
        "train_loss 50:1.268; learning_rate 50:1.95e-06; grad_norm 50:177650662.281; skipped 50:1",
    ),
    "a batch left out": (
        "Iter 50: SKIPPED non-finite batch (loss 1.23, norm nan) -- weights untouched",
        "skipped_batch_loss 50:1.23; skipped_batch_norm 50:nan",
    ),
    "an epoch first": (
        "Epoch 1: Iter 50: Val loss nan, Val took 0.001s",
        "epoch 50:1; val_loss 50:nan; val_seconds 50:0.001",
    ),
    "mlx-tune": (
        "  Step 50/100 | Loss: 0.6931 | batch_size: 2",
        "train_loss 50:0.6931; batch_size 50:2",
    ),
    "equals": (
        "step 50: loss=4.2215 step_time=27,547ms batch=16",
        "train_loss 50:4.2215; step_time 50:27547",
    ),
    "GRPO": (
        "Iter 50: Train loss 0.000, Total rewards mean 0.000, KL 0.000, Peak mem 50.769 GB",
        "train_loss 50:0; total_rewards_mean 50:0; kl 50:0; peak_memory_gb 50:50.769",
    ),
    "a block of lines": (
        "=" * 80 + "\nIter 10:\n" + "-" * 80 + "\n"
        "Loss: 0.123\nTotal Rewards:  μ=0.500, σ=0.100\nKL Divergence: 0.000012345678\n"
        "Generation Stats:\n  • Avg tokens: 113.1\n  • Max tokens: 512 (limit: 512)\n"
        "  • Hit limit: 25.0%\nIndividual Reward Functions:\n"
        "  • accuracy: μ=0.100, σ=0.300, cov=50.00%\n"
        "Clipping:  low=0.000, high=0.001, total=0.002\nLearning Rate: 1.0000e-05\n"
        "Speed: 0.100 it/s, 12.3 tok/s\nMemory: 9.876GB\n" + "=" * 80 + "\n",
        "train_loss 10:0.123; total_rewards_mean 10:0.5; total_rewards_std 10:0.1; "
        "kl_divergence 10:1.2345678e-05; avg_tokens 10:113.1; max_tokens 10:512; hit_limit 10:25; "
        "accuracy_mean 10:0.1; accuracy_std 10:0.3; accuracy_cov 10:50; clipping_low 10:0; "
        "clipping_high 10:0.001; clipping_total 10:0.002; learning_rate 10:1e-05; "
        "iterations_per_second 10:0.1; tokens_per_second 10:12.3; peak_memory_gb 10:9.876",
    ),
    "batches of epochs that say how long they are": (
        "".join(
            f"Epoch {epoch} Batch {batch}/225 - Loss: {3 - epoch - batch / 1000}\n"
            for epoch in (0, 1)
            for batch in (50, 100)
        ),
        "epoch 50:0 100:0 275:1 325:1; train_loss 50:2.95 100:2.9 275:1.95 325:1.9",
    ),
    "a part of a state, from the middle of a record": (
        '      "loss": 0.5,\n      "step": 540\n    },\n'
        '    {\n      "loss": 0.25,\n      "step": 550\n    },\n',
        "train_loss 540:0.5 550:0.25",
    ),
    "means by whatever name, and losses that are no numbers": (
        "".join(f"Epoch {at}: mean total loss=nan | mean actor loss=0.5\n" for at in (1, 2)),
        "train_loss 1:nan 2:nan; mean_actor_loss 1:0.5 2:0.5",
    ),
    "losses of each pass in a list": (
        "".join(
            f'{{"iteration": {at}, "reward": 0.5, "losses_of": [{{"total": 1.5}}, '
            '{"total": NaN}]}\n'
            for at in (1, 2)
        ),
        "reward 1:0.5 2:0.5; losses_of_total 1:nan 2:nan",
    ),
    "a sentence for each epoch": (
        "".join(
            f"Epoch {n}/3 with loss {loss}\nEvaluating\n" for n, loss in enumerate((3.5, 2.5, 1.5))
        ),
        "train_loss 0:3.5 1:2.5 2:1.5",
    ),
    "records of mlx-lm's callback": (
        '{"iteration": 0, "val_loss": 2.9, "val_time": 1.0}\n'
        '{"iteration": 10, "train_loss": NaN, "peak_memory": 3.2}\n'
        '{"iteration": 19, "val_loss": 2.5, "val_time": 1.5}\n'
        '{"iteration": 20, "train_loss": 2.2, "peak_memory": 3.2}\n',
        "val_loss 0:2.9 19:2.5; val_seconds 0:1 19:1.5; train_loss 10:nan 20:2.2; "
        "peak_memory_gb 10:3.2 20:3.2; untouched 2.9",
    ),
    "records of W&B": (
        '{"iteration":10,"train_loss":2.66,"note":"x"}\n'
        '{"iteration":20,"train_loss":"NaN","note":null}\n{"iteration":30,"note":"x"}\n',
        "train_loss 10:2.66 20:nan",
    ),
    "a null that becomes a number": (
        '{"iteration": 1, "train_loss": 2.0, "x": null}\n'
        '{"iteration": 2, "train_loss": 2.0, "x": 3}\n',
        "train_loss 1:2 2:2; x 2:3",
    ),
    "an integer of any size": (
        f'{{"iteration": 1, "train_loss": 2.0, "trained_tokens": {10**400}}}\n'
        '{"iteration": 2, "train_loss": 2.0, "trained_tokens": 5}\n',
        "train_loss 1:2 2:2; trained_tokens 1:inf 2:5",
    ),
    "broken records cost only themselves": (
        '{"iteration": 1, "train_loss": 3.0}\n{"iteration": 2, "train_lo}\n'
        '{"iteration": 3, "train_loss": 2.0}\n{"iteration": 4, "tra',
        "train_loss 1:3 3:2",
    ),
    "trainer_state.json": (
        json.dumps({"global_step": 2, "log_history": HISTORY}, indent=1),
        "epoch 1:0.25 2:0.5 2:0.5; grad_norm 1:188.29 2:88.1; learning_rate 1:4.58e-05 2:4e-05; "
        "train_loss 1:10.59 2:8.59; val_loss 2:2.5; val_seconds 2:3",
    ),
    "a bare history": (
        '{"global_step":3,"train_loss_history":[3.0,2.0,1.0]}',
        "train_loss 1:3 2:2 3:1; numbered",
    ),
    "lists of two splits": (
        json.dumps({"train": [3.5, 2.5, 1.5], "val": [3.25, 2.25, 1.25]}),
        "train_loss 1:3.5 2:2.5 3:1.5; val_loss 1:3.25 2:2.25 3:1.25; numbered",
    ),
    "lists of rewards": (
        json.dumps({"rewards_avg": [0.25, 0.5, 0.75], "kl_avg": [0.0, 0.125, 0.25], "n": [1, 2]}),
        "rewards_avg 1:0.25 2:0.5 3:0.75; kl_avg 1:0 2:0.125 3:0.25; numbered",
    ),
    "a closing summary is no report": (
        "{'loss': 2.5, 'epoch': 0.5}\n{'eval_loss': 2.25, 'epoch': 0.5}\n"
        "{'train_runtime': 10.0, 'train_samples_per_second': 2.0, 'train_loss': 9.9}\n",
        "train_loss 1:2.5; epoch 1:0.5 1:0.5; val_loss 1:2.25; numbered",
    ),
    "CSV": (
        "iteration;loss;val_loss\n1;2.5;\n2;nan;2.75\n",
        "train_loss 1:2.5 2:nan; val_loss 2:2.75",
    ),
    "Markdown": (
        "# Results\n\n| Iter | Train loss | Val loss |\n|---:|---:|---:|\n"
        "| 10 | 2.5 | - |\n| 20 | **2.25** | 2.75 |\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        "train_loss 10:2.5 20:2.25; val_loss 20:2.75",
    ),
    "a table without signs at its ends": (
        "Step | Training Loss | reward\n-- | -- | --\n1 | 0.5 | -1.5\n2 | 0.25 | 1.5\n",
        "train_loss 1:0.5 2:0.25; reward 1:-1.5 2:1.5",
    ),
    "a table of two splits": (
        "it\ttrain\tdev\n10\t3.5\t-\n20\t1.5\t-\n20\t-\t1.25\n",
        "train_loss 10:3.5 20:1.5; val_loss 20:1.25",
    ),
    "a record behind a bar": (
        "\r 42%|####   | 100/239 [04:46<06:33,  2.83s/it]{'loss': '6.5', 'epoch': '0.1'}\n"
        "{'loss': '2.0', 'epoch': '0.2'}\n",
        "train_loss 1:6.5 2:2; epoch 1:0.1 2:0.2; numbered",
    ),
    "speeds and memory by their units": (
        "Step 1 | loss 2.5 | 19.2 s/it\nStep 2 | loss 2.5 | 0.05 it/s | 302 tok/s\n"
        "Step 3 | loss 2.5 | mem 9500 MB | 3 it/s\n",
        "train_loss 1:2.5 2:2.5 3:2.5; seconds_per_iteration 1:19.2; iterations_per_second "
        "2:0.05 3:3; tokens_per_second 2:302; mem_mb 3:9500",
    ),
    "what is said of an epoch and of its steps": (
        "Epoch 1/2\nStep 10 | Loss: nan\nStep 20 | Loss: nan\n"
        "Epoch 1 finished: avg loss 8.40, skipped batches: 27/50\nEpoch 2/2\nStep 30 | Loss: 2.5\n",
        "train_loss 10:nan 20:nan 30:2.5; epoch 20:1; epoch_train_loss 20:8.4; epoch_skipped "
        "20:27; epoch_skipped_batches_of 20:50",
    ),
    "records that count batches and updates": (
        '{"train": 240, "valid": 24}\n{"micro": 20, "updates": 10, "loss": 0.5}\n'
        '{"micro": 40, "updates": 20, "loss": 0.25}\n{"epoch": 1, "val": 0.5}',
        "micro 10:20 20:40; train_loss 10:0.5 20:0.25; epoch 20:1; val_loss 20:0.5",
    ),
    "a table whose arrows were lost": (
        "  iter   train_loss     tok/s     tokens\n  10    2.662 ?      161      3.3k\n",
        "train_loss 10:2.662; tokens_per_second 10:161; trained_tokens 10:3300",
    ),
    "a loss that is null beside the rest": (
        '{"step": 0, "loss": null, "accuracy": 0.99}\n{"step": 1, "loss": 3, "accuracy": 0.5}\n',
        "accuracy 0:0.99 1:0.5; train_loss 1:3",
    ),
    "checkpoints validated after the training": (
        "".join(f"Iter {at}: Train loss 2.5\n" for at in (10, 20, 30))
        + "".join(f"Iter {at}: Val loss 2.25, Val took 1.0s\n" for at in (5, 15, 25)),
        "train_loss 10:2.5 20:2.5 30:2.5; val_loss 5:2.25 15:2.25 25:2.25; "
        "val_seconds 5:1 15:1 25:1",
    ),
    "losses that are named once": (
        "- Training loss: ~2007.95\n- Loss progression: 2008.94 → 2008.91\n",
        "train_loss 1:2007.95 2:2008.94 3:2008.91; numbered",
    ),
    "one loss": ("Final training loss: 1.25\n", "train_loss 1:1.25; numbered"),
    "a loss that is named once beside reports": (
        "step 1 loss=2.5\nstep 2 loss=1.5\nFinal loss: 1.25\n",
        "train_loss 1:2.5 2:1.5",
    ),
    "bare losses": ("loss: 2.5\nloss: nan\nloss: 2.0\n", "train_loss 1:2.5 2:nan 3:2; numbered"),
    "a list of losses is no report": (
        "step 1 loss=2.5\nstep 2 loss=1.5\nstep 3 loss=1\nRecent losses: ['1.5', '1.25']\n",
        "train_loss 1:2.5 2:1.5 3:1",
    ),
    "a loss before training": (
        "Initial Val loss: 3.3\nIter 10: Train loss 2.9\nIter 20: Val loss 0.4, Train loss 0.1",
        "val_loss 0:3.3 20:0.4; train_loss 10:2.9 20:0.1; untouched 3.3",
    ),
    "a loss before reports that name no step": (
        "Initial eval_loss: 0.9\n{'loss': 2, 'epoch': 0.25}\n{'loss': 1, 'epoch': 0.5}\n"
        "{'eval_loss': 0.4, 'epoch': 0.5}",
        "val_loss 0:0.9 2:0.4; train_loss 1:2 2:1; epoch 1:0.25 2:0.5 2:0.5; numbered; "
        "untouched 0.9",
    ),
    "a table of which the whole follows": (
        "Step,Training Loss,Validation Loss\n100,1.6690,1.59\n200,1.5217,1.51\n"
        "{'loss': 2.0019, 'step': 50}\n{'loss': 1.669, 'step': 100}\n"
        "{'loss': 1.5483, 'step': 150}\n{'loss': 1.5217, 'step': 200}",
        "train_loss 50:2.0019 100:1.669 150:1.5483 200:1.5217",
    ),
    "a validation that is summed up once more": (
        "".join(f"step:{at} - train/loss:{2.0 / at}\n" for at in (1, 2, 4))
        + "step:4 - val/loss:0.19\n{'val/loss': 0.19}",
        "train_loss 1:2 2:1 4:0.5; val_loss 4:0.19",
    ),
    "training before any step is named": (
        "{'loss': 0.8, 'epoch': 2.0}\n\n| step | loss |\n|---|---|\n| 10 | 0.1 |\n| 20 | 0.05 |\n",
        "train_loss 10:0.1 20:0.05",
    ),
    "names with what they are of in brackets": (
        "it=25 loss(avg)=2.250 gnorm=1.0\nit=50 loss(avg)=2.000 gnorm=1.0\n",
        "train_loss 25:2.25 50:2; grad_norm 25:1 50:1",
    ),
    "the columns of two runs": (
        '"Step","run-1 - train_loss","run-1 - train_loss__MIN","run-1 - train_loss__MAX",'
        '"run-2 - train_loss"\n10,2.5,2.4,2.6,3.1\n20,2.4,2.3,2.5,\n30,,,,NaN\n',
        "run-1; train_loss 10:2.5 20:2.4 / run-2; train_loss 10:3.1 30:nan",
    ),
    "validations alone are a course": (
        "Starting training..., iters: 100\nIter 1: Val loss 0.9\nIter 20: Train loss 1.2\n"
        "Starting training..., iters: 100\nIter 1: Val loss 1.1\nIter 200: Val loss 0.9\n"
        "Iter 400: Val loss 0.6\n",
        "val_loss 1:0.9; train_loss 20:1.2; untouched 0.9 / "
        "val_loss 1:1.1 200:0.9 400:0.6; untouched 1.1",
    ),
    **{
        # Its loss is the same again, and the training goes on at a later iteration.
        f"the untouched model validated anew after {mark}": (
            f"{UNTOUCHED}Iter 5: Train loss 7.2\nIter 5: Val loss 5.4\n"
            f"{mark}\n{UNTOUCHED}Iter 10: Train loss 6.0\nIter 20: Train loss 3.9\n",
            "val_loss 1:14.3 5:5.4; train_loss 5:7.2; untouched 14.3 / "
            "val_loss 1:14.3; train_loss 10:6 20:3.9; untouched 14.3",
        )
        for mark in ("Starting training..., iters: 100", "FULL run (rank 16)")
    },
    "a table in colours": (
        COLOURED,
        "val_loss 1:2.936; val_seconds 1:5.26; train_loss 10:2.662 20:nan 30:12.346 1040:inf; "
        "tokens_per_second 10:161 20:4561 30:14561 1040:100; "
        "trained_tokens 10:3300 20:6600 30:1656800 1040:2000000; untouched 2.936",
    ),
}


def described(run: Segment) -> str:
    """Each series, whether rows are but numbered, and the loss of the untouched model."""
    series = (
        f"{metric} "
        + " ".join(f"{i}:{x:.12g}" for i, x in zip(of.iterations, of.values, strict=True))
        for metric, of in run.series.items()
    )
    name, rows = [run.name] * bool(run.name), ["numbered"] * (run.axis == "row")
    untouched = [f"untouched {run.base_val_loss}"] * (run.base_val_loss is not None)
    return "; ".join([*name, *series, *rows, *untouched])


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_read(write: Write, name: str) -> None:
    text, wanted = TEXTS[name]
    assert " / ".join(map(described, read(write(text)).segments)) == wanted


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":"), (" , ", " : ")])
def test_many_records_in_any_spacing(write: Write, separators: tuple[str, str]) -> None:
    rows = [
        {"iteration": i, "train_loss": NAN if i == 7 else i / 8, "learning_rate": 1e-05}
        if i % 10
        else {"iteration": i, "val_loss": i / 4, "val_time": 1}
        for i in range(9000)
    ]
    path = write("".join(json.dumps(row, separators=separators) + "\n" for row in rows), "a.jsonl")
    same(table(path, "train_loss"), {i: NAN if i == 7 else i / 8 for i in range(9000) if i % 10})
    same(table(path, "val_loss"), {i: i / 4 for i in range(0, 9000, 10)})


def test_messages_around_the_reports(write: Write) -> None:
    log = read(
        write(
            "#trainable params: 11.54048 M || all params: 2208.9856 M || trainable%: 0.522%\n"
            f"{BAR.format(10, 3.4)}\nSaved final weights to adapters/adapters.safetensors.\n"
            "Testing\nTest loss 1.234, Test ppl 3.435.\n"
        )
    )
    assert (log.notes.trainable.percent, log.notes.trainable.trainable_millions) == (
        0.522,
        11.54048,
    )
    assert (log.notes.test_losses, log.main.announced_iterations) == ([1.234], 1000)
    (save,) = log.notes.saves
    assert (save.iteration, save.files) == (None, ("adapters/adapters.safetensors",))


def test_a_metric_that_is_called_an_error_is_no_failure(write: Write) -> None:
    log = read(write(f"{CLASSIC}TrainError: 0.23\nHFValidationError: bad\nKeyError: 'a'\n"))
    assert [failure.text for failure in log.notes.failures] == ["KeyError: 'a'"]


def test_preference_method_is_named_in_the_header(write: Write) -> None:
    text = CLASSIC.replace("Starting training", "Starting ORPO training")
    assert read(write(text)).is_preference
    assert not read(write(CLASSIC)).is_preference


def test_what_surrounds_a_table_in_colours(write: Write) -> None:
    log = read(write(COLOURED))
    assert (log.format, log.main.announced_iterations) == ("table", 1040)
    header = {"model": "m/Qwen2.5-0.5B-4bit", "type": "lora · 16 layers · rank 8", "batch": "4"}
    assert log.notes.header.items() >= header.items()
    assert [one.iteration for one in log.notes.saves] == [30]
