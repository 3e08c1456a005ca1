# A task for docs/fine_tuning.md, written into the current folder: chats.jsonl and held_out.jsonl ask for phrases in a made-up
# language whose nouns come first, texts.jsonl has English sentences of the same words.
BEGIN {
  n = split("fox cat dog cow owl bat hen pig rat bee ant elk fish bird frog goat bear wolf deer duck", noun)
  split("fenu kati dumo lowa huru bati gena pigo ratu zizi nanto elko pesi biro ropa gato beru wulu dera kwak", tiku_noun)
  m = split("red big old wet shy odd hot new sad fat", adjective)
  split("roka bolu senta wiza tima oddo kalo neva sado molu", tiku_adjective)
  for (i = 1; i <= n; ++i) for (j = 1; j <= m; ++j) {
    file = (i + 3 * j) % 5 ? "chats.jsonl" : "held_out.jsonl"
    printf "{\"messages\": [{\"role\": \"user\", \"content\": \"In Tiku: %s %s\"}, {\"role\": \"assistant\", \"content\": \"%s %s\"}]}\n", adjective[j], noun[i], tiku_noun[i], tiku_adjective[j] > file
  }
  split("sees likes knows follows finds", verb)
  for (k = 1; k <= 1500; ++k) {
    a = k * 7 % n + 1; b = k * 11 % n + 1; c = k * 3 % m + 1; d = int(k / 3) % m + 1; v = k % 5 + 1
    printf "{\"text\": \"The %s %s %s the %s %s.\"}\n", adjective[c], noun[a], verb[v], adjective[d], noun[b] > "texts.jsonl"
  }
}
