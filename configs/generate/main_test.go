package main

import (
	"bytes"
	"os"
	"testing"
)

// TestGenerated compares what is committed with the rows.
func TestGenerated(t *testing.T) {
	text, err := os.ReadFile("../default.toml")
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := defaults(text)
	if err != nil || !bytes.Equal(fresh, text) {
		t.Errorf("default.toml is not what the rows say (%v): run go generate ./configs", err)
	}
	committed, err := os.ReadFile("../rows.h")
	if err != nil || !bytes.Equal(committed, header()) {
		t.Errorf("rows.h is not what the rows say (%v): run go generate ./configs", err)
	}
}
