package mountopt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseOptions(t *testing.T) {
	tests := map[string]struct {
		options []string
		want    Options
	}{
		"none":           {},
		"flags":          {[]string{"ro", "nosuid,nodev", "noexec"}, Options{Set: unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC}},
		"the last wins":  {[]string{"ro", "nosuid", "rw"}, Options{Set: unix.MS_NOSUID, Clear: unix.MS_RDONLY}},
		"and back again": {[]string{"rw", "ro"}, Options{Set: unix.MS_RDONLY}},
		"atime excludes": {[]string{"noatime", "relatime"}, Options{Set: unix.MS_RELATIME, Clear: unix.MS_NOATIME | unix.MS_STRICTATIME}},
		"bind":           {[]string{"bind", "ro"}, Options{Bind: true, Set: unix.MS_RDONLY}},
		"rbind, rslave": {
			[]string{"rbind", "private", "rslave"},
			Options{Bind: true, Recursive: true, Propagation: []uintptr{unix.MS_PRIVATE, unix.MS_SLAVE | unix.MS_REC}},
		},
		"remount":            {[]string{"remount", "size=1m"}, Options{Remount: true, Data: []string{"size=1m"}}},
		"data":               {[]string{"size=1m,mode=0700", `context="a,b"`, "noswap"}, Options{Data: []string{"size=1m", "mode=0700", `context="a,b"`, "noswap"}}},
		"words for others":   {[]string{"defaults", "_netdev", "nofail", "noauto", "x-systemd.automount", "comment=x", ""}, Options{}},
		"for mount(8) alone": {[]string{"loop=/dev/loop1", "X-mount.mkdir", "user=bob"}, Options{Command: []string{"loop=/dev/loop1", "X-mount.mkdir", "user=bob"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Parse(tc.options...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEveryGenericWordHasItsOpposite(t *testing.T) {
	for _, pair := range [][2]string{
		{"ro", "rw"}, {"nosuid", "suid"}, {"nodev", "dev"}, {"noexec", "exec"}, {"nosymfollow", "symfollow"}, {"noatime", "atime"},
		{"relatime", "norelatime"}, {"strictatime", "nostrictatime"}, {"nodiratime", "diratime"}, {"sync", "async"}, {"mand", "nomand"},
		{"lazytime", "nolazytime"}, {"iversion", "noiversion"}, {"silent", "loud"},
	} {
		set := Parse(pair[0])
		if set.Set == 0 || len(set.Data) > 0 {
			t.Errorf("%s: %+v", pair[0], set)
		}
		if both := Parse(pair[0], pair[1]); both.Set != 0 || both.Clear&set.Set == 0 {
			t.Errorf("%s, then %s: %+v", pair[0], pair[1], both)
		}
	}
}

func TestApplyKeepsWhatIsNotMentioned(t *testing.T) {
	current := FlagsShown([]string{"ro", "nosuid", "nodev", "noatime"})
	if want := uintptr(unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME); current != want {
		t.Fatalf("shown flags %#x, want %#x", current, want)
	}
	got := Parse("rw", "noexec", "relatime").ApplyToMount(current)
	if want := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME); got != want {
		t.Errorf("flags %#x, want %#x", got, want)
	}
	if got := FlagsShown([]string{"rw"}); got != unix.MS_STRICTATIME {
		t.Errorf("a mount without an atime word: %#x", got)
	}
}
