package fakemount_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/mounttest"
)

func TestCallNeverShowsSensitiveOptions(t *testing.T) {
	const secret = "hunter2"
	f, root := mounttest.NewFake(t)
	if err := f.MountSensitive("//server/share", root, "cifs", []string{"ro"}, []string{"password=" + secret}); err != nil {
		t.Fatal(err)
	}
	call := f.Calls()[0]
	if got := call.Sensitive(); !slices.Equal(got, []string{"password=" + secret}) {
		t.Fatalf("Sensitive = %q", got)
	}
	failed := f.MountSensitive("//server/share", root+"/nothing", "cifs", nil, []string{"password=" + secret})
	points, _ := f.List()
	entries, _ := f.Table().All()

	type private struct {
		call  fakemount.Call
		calls []fakemount.Call
	}
	shown := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		shown[verb] = fmt.Sprintf(verb, call)
		shown["pointer "+verb] = fmt.Sprintf(verb, &call)
		shown["field "+verb] = fmt.Sprintf(verb, private{call, []fakemount.Call{call}})
	}
	asJSON, err := json.Marshal(call)
	if err != nil {
		t.Fatal(err)
	}
	shown["json"] = string(asJSON)
	var text, lines bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&text, nil), slog.NewJSONHandler(&lines, nil)} {
		slog.New(h).Info("called", "call", call, "calls", []fakemount.Call{call})
	}
	shown["slog text"], shown["slog json"] = text.String(), lines.String()
	shown["diff"] = cmp.Diff(call, fakemount.Call{})
	shown["error"] = failed.Error() + fmt.Sprintf("%+v", failed)
	shown["table"] = fmt.Sprint(points, entries)

	for form, s := range shown {
		if s == "" || strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s: %s", form, s)
		}
	}
	for _, form := range []string{"%v", "%+v", "%#v", "json", "slog text", "slog json"} {
		if !strings.Contains(shown[form], "masked") {
			t.Errorf("%s does not tell that there is a sensitive option: %s", form, shown[form])
		}
	}
	if want := "mount -t cifs -o ro,<masked> //server/share " + root; call.String() != want {
		t.Errorf("String = %q, want %q", call, want)
	}
}

func TestCallsAreCopies(t *testing.T) {
	f, root := mounttest.NewFake(t)
	options := []string{"size=1m"}
	mounttest.MountBy(t, f, mount.Request{Source: "tmpfs", Target: root, FSType: "tmpfs", Options: options, Sensitive: []string{"uid=0"}})
	options[0] = "changed"
	first := f.Calls()
	first[0].Options[0] = "changed"
	first[0].Sensitive()[0] = "changed"
	again := f.Calls()[0]
	if again.Options[0] != "size=1m" || again.Sensitive()[0] != "uid=0" {
		t.Errorf("the log was changed from outside: %v, %v", again, again.Sensitive())
	}
	if again.Equal(first[0]) || !again.Equal(f.Calls()[0]) {
		t.Error("Equal does not compare the options")
	}
	entries, _ := f.Table().All()
	entries[1].Options[0] = "changed"
	if e, _, _ := f.Table().At(root); e.Options[0] != "rw" {
		t.Error("the table was changed from outside")
	}
	f.ResetCalls()
	if got := f.Calls(); len(got) != 0 {
		t.Errorf("after ResetCalls there are %v", got)
	}
}

func TestCallNamesTheCommand(t *testing.T) {
	f, root := mounttest.NewFake(t)
	if err := f.Unmount(root); err == nil {
		t.Fatal("unmounted what is not mounted")
	}
	f.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }, Err: unix.EIO})
	_ = f.Mount("a", root, "", []string{"bind", "ro"})
	var got []string
	for _, c := range f.Calls() {
		got = append(got, c.String())
	}
	want := []string{"umount " + root, "mount -o bind,ro a " + root}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
