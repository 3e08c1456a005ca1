# What the site needs of a page: a block's language alone; a link to a page without the place in it; of a link to what
# the site has not (sources, folders) its text.
/^ *```/,/^ *```$/ {
  s/^( *```[a-z]+) .*/\1/
  b
}
s/\]\(([^) #:]+\.md)#[^)]*\)/](\1)/g
s/\]\(([^) :]+\.(md|svg))\)/](\1 )/g
s/\[([^][]*)\]\([^) :]+\)/\1/g
s/\]\(([^) :]+) \)/](\1)/g
