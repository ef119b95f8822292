#!/usr/bin/env python3
"""Writes the texts and requests of the codec's benchmarks into a folder: four texts of a megabyte (English prose, Chinese
prose, code, a mixture with numbers, tables and emoji), a chat of 20 turns, an agent's request with 20 tools, and an answer
with thinking and calls. The same bytes on every machine.

    bench/codec/texts.py FOLDER
"""
import json
import pathlib
import random
import sys

BYTES = 1_000_000
ROOT = pathlib.Path(__file__).resolve().parents[2]

ENGLISH = """the of and to in a is that it was for on are as with his they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some so these would other into
has more her two like him see time could no make than first been its who now people my made over did down only way find use may
water long little very after words called just where most know get through back much before go good new write our used me man too
any day same right look think also around another came come work three word must because does part even place well such here take
why things help put years different away again off went old number great tell men say small every found still between name should
home big give air line set own under read last never us left end along while might next sound below saw something thought both few
those always looked show large often together asked house world going want school important until form food keep children feet land
side without boy once animals life enough took sometimes four head above kind began almost live page got earth need far hand high
year mother light parts country father let night following picture being study second eyes soon times story boys since white days
ever paper hard near sentence better best across during today others however sure means knew try told young miles sun ways thing
whole hear example heard several change answer room sea against top turned learn point city play toward five using himself usually
money seen car morning given system memory request response scheduler throughput latency architecture implementation documentation
understanding responsibility nevertheless extraordinary configuration environment development communication infrastructure""".split()
CHINESE = """我们 他们 你们 这个 那个 什么 怎么 可以 没有 因为 所以 但是 如果 已经 现在 时候 知道 觉得 问题 工作 生活 世界 中国 国家 社会 经济 发展
学生 老师 学校 学习 大学 研究 科学 技术 系统 数据 模型 语言 计算机 人工智能 机器学习 神经网络 服务器 请求 响应 内存 缓存 处理 方法 结果 过程
时间 地方 城市 北京 上海 朋友 家庭 孩子 父母 文化 历史 音乐 电影 新闻 报道 记者 公司 市场 企业 产品 客户 服务 质量 管理 项目 计划 目标 重要
非常 特别 一般 可能 应该 需要 必须 开始 结束 继续 完成 提高 改变 增加 减少 影响 关系 情况 环境 条件 基础 能力 水平 机会 经验 意见 建议 决定
今天 明天 昨天 早上 晚上 春天 夏天 秋天 冬天 天气 下雨 太阳 月亮 山水 河流 海洋 森林 动物 植物 健康 医院 医生 药物 运动 比赛 足球 一个 一种
两个 许多 所有 每个 其中 其他 自己 之间 以及 或者 而且 不过 虽然 然而 因此 通过 根据 关于 对于 随着 在 是 有 和 的 了 不 也 都 就 很 到 说 要
去 会 着 看 好 上 下 来 大 小 多 少 长 新 老 高 低 快 慢 书 水 火 人 手 心 门 车 路 花 树 鸟 鱼 牛 马""".split()


def zipf(words, rng):
    weights = [1 / (rank + 8) for rank in range(len(words))]
    return lambda n: rng.choices(words, weights, k=n)


def english(size, seed):
    rng = random.Random(seed)
    draw, out, length = zipf(ENGLISH, rng), [], 0
    while length < size:
        sentence = " ".join(draw(rng.randint(6, 22))).capitalize()
        if rng.random() < 0.3:
            sentence = sentence.replace(" and ", ", and ", 1)
        if rng.random() < 0.05:
            sentence = f'"{sentence}"'
        sentence += rng.choices([". ", "? ", "! ", ".\n\n", "; "], [70, 8, 4, 14, 4])[0]
        out.append(sentence)
        length += len(sentence)
    return "".join(out)


def chinese(size, seed):
    rng = random.Random(seed)
    draw, out, length = zipf(CHINESE, rng), [], 0
    while length < size:
        sentence = "".join(draw(rng.randint(4, 14))) + rng.choices(["，", "。", "、", "；", "。\n\n", "？", "”，“"], [45, 30, 6, 4, 8, 4, 3])[0]
        out.append(sentence)
        length += len(sentence.encode())
    return "".join(out)


def code(size):
    """This repository's own sources as they are."""
    files = sorted(path for folder, pattern in (("src", "*.cc"), ("src", "*.h"), ("tools", "*.py"), ("tests", "*.cc"))
                   for path in (ROOT / folder).rglob(pattern) if not path.name.endswith("_table.cc"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return (text * (size // len(text) + 1))[:size]


def mixed(size, seed):
    rng = random.Random(seed)
    out, length = [], 0
    source = code(200_000)
    while length < size:
        kind = rng.randrange(6)
        if kind == 0:
            part = english(600, rng.random())
        elif kind == 1:
            part = chinese(600, rng.random())
        elif kind == 2:
            at = rng.randrange(len(source) - 800)
            part = f"\n```cpp\n{source[at:at + 600]}\n```\n"
        elif kind == 3:
            part = "\n".join("| " + " | ".join(f"{rng.random() * 10 ** rng.randint(0, 7):.{rng.randint(0, 4)}f}" for _ in range(5)) + " |"
                             for _ in range(8)) + "\n"
        elif kind == 4:
            part = json.dumps({f"key_{rng.randrange(100)}": [rng.randrange(10 ** 9), english(40, rng.random())] for _ in range(6)}, indent=2) + "\n"
        else:
            part = "".join(rng.choice("😀🎉👍🏽🚀❤️🇨🇳 Привет мир, これはテスト です。 안녕하세요 Ünïcödé ñandú ") for _ in range(200)) + "\n"
        out.append(part)
        length += len(part.encode())
    return "".join(out)


def chat():
    messages = [{"role": "system", "content": english(1500, 1)}]
    for turn in range(20):
        messages.append({"role": "user", "content": english(500, 100 + turn) if turn % 4 else mixed(400, 100 + turn)})
        messages.append({"role": "assistant", "content": english(1100, 200 + turn), "reasoning_content": english(200, 300 + turn)})
    messages.append({"role": "user", "content": english(300, 400)})
    return {"model": "DeepSeek-V4.1-Flash", "messages": messages, "stream": True}


def tools():
    out = []
    for i in range(20):
        properties = {f"{ENGLISH[40 + i]}_{k}": {"type": ["string", "integer", "boolean", "array"][k % 4], "description": english(70, 1000 + 10 * i + k)}
                      for k in range(6)}
        for value in properties.values():
            if value["type"] == "array":
                value["items"] = {"type": "string", "enum": ["alpha", "beta", "gamma"]}
        out.append({"type": "function", "function": {
            "name": f"tool_{i}_{ENGLISH[90 + i]}", "description": english(300, 2000 + i),
            "parameters": {"type": "object", "properties": properties, "required": list(properties)[:2], "additionalProperties": False}}})
    return out


def agent():
    messages = [{"role": "system", "content": english(3000, 2)}, {"role": "user", "content": english(400, 3)}]
    for turn in range(8):
        calls = [{"id": f"call_{turn}_{k}", "type": "function", "function": {
            "name": f"tool_{k}_{ENGLISH[90 + k]}", "arguments": json.dumps({"path": f"src/{ENGLISH[turn]}.cc", "text": code(300)[turn * 7:], "line": turn})}}
            for k in range(2)]
        messages.append({"role": "assistant", "content": english(80, 4 + turn), "reasoning_content": english(400, 50 + turn), "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": code(4000)[turn * 400:]} for call in calls]
    return {"model": "DeepSeek-V4.1-Flash", "messages": messages, "tools": tools(), "stream": True}


def answer():
    def call(k):
        return (f'<｜DSML｜ invoke name="tool_{k}_{ENGLISH[90 + k]}">\n<｜DSML｜ parameter name="text" string="true">{code(6000)[k * 300:]}'
                f'</｜DSML｜ parameter>\n<｜DSML｜ parameter name="rows" string="false">{json.dumps(list(range(300)))}</｜DSML｜ parameter>\n</｜DSML｜ invoke>')
    calls = "\n".join(call(k) for k in range(2))
    return f"{english(20000, 7)}</think>{mixed(20000, 8)}\n\n<｜DSML｜ calls>\n{calls}\n</｜DSML｜ calls>"


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "english.txt").write_text(english(BYTES, 11), encoding="utf-8")
    (folder / "chinese.txt").write_text(chinese(BYTES, 12), encoding="utf-8")
    (folder / "code.txt").write_text(code(BYTES), encoding="utf-8")
    (folder / "mixed.txt").write_text(mixed(BYTES, 13), encoding="utf-8")
    (folder / "chat.json").write_text(json.dumps(chat(), ensure_ascii=False), encoding="utf-8")
    (folder / "agent.json").write_text(json.dumps(agent(), ensure_ascii=False), encoding="utf-8")
    (folder / "answer.md").write_text(answer(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]))
