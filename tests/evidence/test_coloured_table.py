from tests.evidence.log_tables import ESC, NAN, Write, read, same, table


def _coloured(iteration: int, loss: str, arrow: str, speed: str, tokens: str) -> str:
    return (
        f"  {ESC}[38;5;244m{iteration:>4}{ESC}[0m    {ESC}[1;32m{loss:>5} {arrow}{ESC}[0m"
        f"    {ESC}[1m{speed:>5}{ESC}[0m    {ESC}[38;5;244m{tokens:>6}{ESC}[0m\n"
    )


EDGE = f"{ESC}[34m│{ESC}[0m"
TABLE = (
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


def test_coloured_table(write: Write) -> None:
    path = write(TABLE)
    log = read(path)
    same(table(path, "train_loss"), {10: 2.662, 20: NAN, 30: 12.346, 1040: float("inf")})
    same(table(path, "tokens_per_second"), {10: 161, 20: 4561, 30: 14561, 1040: 100})
    same(table(path, "trained_tokens"), {10: 3300, 20: 6600, 30: 1656800, 1040: 2000000})
    same(table(path, "val_loss"), {1: 2.936})
    same(table(path, "val_seconds"), {1: 5.26})
    assert log.format == "table"
    assert log.main.announced_iterations == 1040
    assert log.notes.header["model"] == "m/Qwen2.5-0.5B-4bit"
    assert log.notes.header["type"] == "lora · 16 layers · rank 8"
    assert log.notes.header["batch"] == "4"
    assert [one.iteration for one in log.notes.saves] == [30]
