package wire

import (
	"strconv"
	"strings"
)

// PutText writes a text into a field of fixed size, with a NUL behind it; the beginning of one that is too long.
func PutText(field []byte, text string) {
	clear(field)
	copy(field[:len(field)-1], text)
}

// PutEnd does the same with the end of a text, which says more of a path.
func PutEnd(field []byte, text string) {
	if room := len(field) - 1; len(text) > room {
		text = text[len(text)-room:]
	}
	PutText(field, text)
}

// GetText reads such a field. A character that is not printable becomes a question mark: the text goes to terminals and logs.
func GetText(field []byte) string {
	text, _, _ := strings.Cut(string(field), "\x00")
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
