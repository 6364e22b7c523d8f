package main

import (
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The commands that the pages for people show exist, with the flags that they show.
func TestShownCommandsExist(t *testing.T) {
	block := regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```")
	inline := regexp.MustCompile("`([^`]*)`")
	shown := regexp.MustCompile(`(?m)^(?:\$ )?(?:sudo )?(?:go run -C examples \./)?podvol ([^#>\n]+)`)
	names := strings.NewReplacer("[", "", "]", "", "NAMESPACE/NAME", "default/web", "COMMAND", "mount", "tar|json|dir", "tar")
	for _, path := range []string{"README.md", "../../README.md", "../../volume/persistentvolume/README.md", "../../volume/plugins/nfs/README.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var code strings.Builder
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			if m[1] == "sh" || m[1] == "console" {
				code.WriteString(m[2])
			}
		}
		for _, m := range inline.FindAllStringSubmatch(block.ReplaceAllString(string(text), ""), -1) {
			code.WriteString(strings.ReplaceAll(m[1], "\n", " ") + "\n")
		}
		found := shown.FindAllStringSubmatch(code.String(), -1)
		if len(found) < 2 {
			t.Errorf("%s shows only the commands %q", path, found)
		}
		for _, m := range found {
			words := strings.Fields(names.Replace(m[1]))
			command, rest, err := rootCommand(streams{out: io.Discard, err: io.Discard}).Find(words)
			if err == nil {
				err = command.ParseFlags(rest)
				if errors.Is(err, pflag.ErrHelp) {
					err = nil
				}
			}
			if err != nil || !command.HasParent() && words[0] != "--help" {
				t.Errorf("%s shows %q: command %s, %v", path, m[0], command.CommandPath(), err)
			}
		}
	}
}
