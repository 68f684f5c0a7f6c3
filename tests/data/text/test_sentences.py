import random

import pytest

from bertjax.data.text.sentences import (
    MAX_SENTENCE_CHARACTERS,
    Document,
    bounded_documents,
    sentences_of,
    split_sentences,
)


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "Nobody came!", "Why?", "We know."],
        ["Mr. J. R. Smith met Dr. Jones in Washington, D.C. on Jan. 5.", "They talked."],
        ["He lived in the U.S. Army barracks.", "The army left at 5 p.m.", "It was dark."],
        ["See Fig. 3 and No. 7.", "(Others, e.g. Smith et al. 2004, differ.)", "“Yes.”", "Good."],
        ['"Why?" he asked.', '"Because it is so."', "She left."],
        ["It cost 3.50 dollars.", "3 men paid.", "Version 2.0.1 is out."],
        ["The end... Then it began.".split(" Then")[0], "Then it began."],
        ["Ça va bien.", "Élodie arrive."],
    ],
)
def test_sentences_are_found_again(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_chinese_and_japanese_sentences_need_no_spaces():
    assert split_sentences("今日は良い天気。明日は雨？そうだ！") == [
        "今日は良い天気。",
        "明日は雨？",
        "そうだ！",
    ]


# Short sentences, and the string between two of them.
_BY_LANGUAGE = {
    "Hindi": (" ", ["मैं घर जाता हूँ।", "क्या वह आई?", "हाँ, वह आई॥", "अब वह खेलती है।"]),
    "Hindi, without spaces": ("", ["मैं घर जाता हूँ।", "वह घर पर है।", "“वह आई।”", "हाँ।"]),
    "Urdu": (" ", ["میں گھر جاتا ہوں۔", "کیا آپ ٹھیک ہیں؟", "قیمت ۳۔۵ ہے۔", "ہاں۔"]),
    "Arabic": (" ", ["هل أنت بخير؟", "نعم، أنا بخير.", "من جاء؟!", "جاء الولد."]),
    "Amharic": (" ", ["ቤቱ ትልቅ ነው።", "ማን መጣ፧", "ልጁ መጣ፡፡", "ደህና ነው።"]),
    "Armenian": (
        " ",
        ["Տունը մեծ է։", "Ժամը 12։30 է։", "Շունը փոքր է:", "Ո՞վ եկավ։", "Եվ նա՞", "Տուն է։"],
    ),
    "Mongolian": (" ", ["ᠪᠢ ᠭᠡᠷ ᠲᠦ ᠬᠠᠷᠢᠪᠠ᠃", "ᠲᠡᠷᠡ ᠢᠷᠡᠪᠡ᠃"]),
    "Chinese": ("", ["他走了……", "“真的……”", "是⋯⋯，不是！", "天黑了。……", "Aha…… no."]),
    "Khmer": (" ", ["គាត់ទិញ ត្រី ។ល។", "ខ្ញុំទៅផ្ទះ។", "គាត់ទៅសាលារៀន។", "ពួកគេលេង៕", "យើងញ៉ាំបាយ។"]),
    "Burmese": ("", ["ကျွန်တော် အိမ်ပြန်တယ်။", "သူ၊ သူမ ကစားကြတယ်။", "မိုးရွာတယ်။"]),
    "Georgian": (" ", ["სახლი დიდია.", "ვინ მოვიდა?", "1921 წ. ი. აბაშიძე მოვიდა.", "კარგია!"]),
    "Greek": (
        " ",
        ["Ποιος ήρθε;", "Ήρθε το παιδί.", "«Τι ώρα είναι\u037e»", "Δεν ξέρω, έχω ένα; όχι."],
    ),
    "Tibetan": (" ", ["ང་ཁང་པར་འགྲོ།", "ཁོ་སློབ་གྲྭར་འགྲོ། །", "བོད་ཡིག་ཡག་པོ་ཡིན༎"]),
    "Japanese": ("", ["これは例である．", "円周率は３．１４である．"]),
    "German": (
        " ",
        [
            "Am 3. Oktober 1990 war es so.",
            "Im 20. Jahrhundert, z. B. Berlin, d. h. u. a. Bonn bzw. Ulm.",
        ]
        + [
            "Der 2. Weltkrieg, siehe Abb. Nr. 5.",
            "3. Mai.",
            "Häuser, Höfe usw.",
            "Es war 1939.",
            "Ja.",
        ],
    ),
    "Russian": (
        " ",
        ["В 1941 г. Германия напала.", "Он жил в г. Москва на ул. Ленина, т. е. Там."]
        + ["Яблоки и т. д.", "Потом пришёл А. С. Пушкин.", "До н. э. Рим был мал."],
    ),
    "Polish": (
        " ",
        ["W 1990 r. Polska, tzw. Nowa, np. Łódź, św. Piotr.", "Ul. Długa itd.", "Potem."],
    ),
    "Czech": (" ", ["Dne 3. Října, např. Praha, sv. Petr.", "Tzv. Nová.", "Konec."]),
    "Croatian": (" ", ["U 2. Svjetskom ratu, npr. Zagreb.", "Bio je kraj."]),
    "Numbers": (" ", ["I am 12.", "My age is 3.", "The end.", "On NPR.", "It was."]),
    "English": (
        " ",
        ["Really‼", "It costs 3.5 rupees (रुपये), e.g. at Mr. Rao's; the α; β too.", "Yes."],
    ),
}


@pytest.mark.parametrize("language", _BY_LANGUAGE)
def test_sentences_of_many_scripts_are_found_again(language):
    between, sentences = _BY_LANGUAGE[language]
    assert split_sentences(between.join(sentences)) == sentences


def test_marks_that_only_resemble_ends_of_sentences_leave_chinese_and_thai_whole():
    for text in ("图１．哈利．波特", "版本３．１４", "แมวกินปลา หมาวิ่งเล่น", "在Ａ．Ｂ．公司"):
        assert split_sentences(text) == [text]


def test_no_word_is_lost_or_changed():
    rng = random.Random(0)
    pieces = ["Mr.", "a", "B.", "end.", "!", "?", "...", "。", '"', "(", ")", "x" * 50, "\n", "\t"]
    pieces += ["।", "؟", "‼", "αβ;", "է:", "፡፡", "1", "ა."]
    for _ in range(500):
        text = " ".join(rng.choices(pieces, k=rng.randrange(120)))
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    [". " * 50_000, "." * 100_000, "x" * 100_000, "a b " * 50_000]
    + ["।" * 100_000, "। " * 50_000, "।" + " " * 100_000, "‼" * 100_000, "αβ;" + "(" * 100_000],
)
def test_text_without_sentences_comes_in_bounded_pieces_and_soon(text):
    pieces = split_sentences(text)
    assert max(map(len, pieces)) <= MAX_SENTENCE_CHARACTERS
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_wrapped_lines_are_joined_and_paragraphs_on_one_line_are_not():
    wrapped = "A sentence that goes on and\non until it ends here. And\nagain.\n\nNew."
    assert sentences_of(Document(wrapped, "prose")) == [
        "A sentence that goes on and on until it ends here.",
        "And again.",
        "New.",
    ]
    unwrapped = (
        "A heading\nA paragraph of its own that is much longer than the heading. End.\nShort"
    )
    assert sentences_of(Document(unwrapped, "prose"))[0] == "A heading"


@pytest.mark.parametrize(
    "text",  # a line that is not full ends an item of a list, and is joined with a space
    [
        "国境の長いトンネルの|雪国でもある、夜のデー|タを送る",
        "天下大势，分久必合，|“合久必分，周末七国”|并入于秦",
        "แมวกินปลาและหมาวิ่ง|เล่นในสวนหลังบ้าน|ทุกวันตอนเช้า",
        "ខ្ញុំទៅផ្សារទិញត្រី|សាច់បន្លែនិង|ផ្លែឈើ",
        "ຂ້ອຍໄປຕະຫຼາດ|ຊື້ປາແລະຊີ້ນໝູ|ຊີ້ນ",
        "ကျွန်တော်အိမ်|ပြန်တယ်သူ|ကစားတယ်",
        "ကကကကကကကကက|ကိုက်ကိုတ|ကကက",
        "대한민국의 수도는 서울이고 부산은 항구이다",
        "किताबें बच्चों दुनिया शब्दों",
        "使用软件 Linux 和中文 Python “and a bcde” yes",
        "苹果和梨子和桃子和李子|香蕉 樱桃和杏子和葡萄和橙子|柠檬和橘子和柚子和瓜",
    ],
)
def test_wrapped_lines_are_joined_as_their_script_is_written(text):
    lines = text.replace("|", "\n").replace(" ", "\n")
    joined = [text.replace("|", "")]
    assert sentences_of(Document(f"{lines}\n\n{lines}", "prose")) == joined * 2


def test_only_line_ends_end_lines():
    text = "One\u2028still one\x0band more.\nTwo."
    assert sentences_of(Document(text, "lines")) == ["One still one and more.", "Two."]


@pytest.mark.parametrize("layout", ["lines", "paragraphs", "prose"])
def test_a_very_long_document_goes_on_in_a_new_one(layout):
    lines = ["word " * 20] * 50_000
    documents = list(bounded_documents(lines, layout))
    assert len(documents) > 1
    assert max(len(document.text) for document in documents) < 2_100_000
    assert "\n".join(document.text for document in documents) == "\n".join(lines)
