package choice_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
)

func command(value *string) (*cobra.Command, *bytes.Buffer) {
	var out bytes.Buffer
	c := &cobra.Command{Use: "show", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return nil }}
	c.SetOut(&out)
	c.SetErr(&out)
	choice.AddOutput(c, value, "table", "wide", "json")
	return c, &out
}

func TestOutputTakesItsWords(t *testing.T) {
	for _, tc := range []struct{ args, want, says string }{
		{"", "table", ""}, {"-o json", "json", ""}, {"--output=wide", "wide", ""},
		{"-o jsno", "table", `it must be table, wide or json; did you mean "json"?`},
		{"-o xml", "table", "it must be table, wide or json"},
	} {
		var value string
		c, _ := command(&value)
		c.SetArgs(strings.Fields(tc.args))
		err := c.Execute()
		switch {
		case (err != nil) != (tc.says != "") || err != nil && !strings.HasSuffix(err.Error(), tc.says):
			t.Errorf("%q: %v, want %q", tc.args, err, tc.says)
		case value != tc.want:
			t.Errorf("%q: %q, want %q", tc.args, value, tc.want)
		}
	}
}

func TestOutputCompletesItsWords(t *testing.T) {
	var value string
	c, out := command(&value)
	c.SetArgs([]string{cobra.ShellCompRequestCmd, "-o", ""})
	if err := c.Execute(); err != nil || !strings.HasPrefix(out.String(), "table\nwide\njson\n:4\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
