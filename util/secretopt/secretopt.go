// Package secretopt knows which mount options and parameters carry a password or a key in
// their value, to keep these out of files and output.
//
// It goes by names, as of mount.cifs(8), mount.ceph(8), sshfs, s3fs, curlftpfs and ecryptfs.
// Options that name a file with a secret (credentials=, secretfile=) are none. A plugin that
// knows another option to be secret passes it on as sensitive.
//
// Like every package below util, it carries no promise of compatibility.
package secretopt

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Masked stands for a secret.
const Masked = "<masked>"

// isSecretName reports whether the value of an option, parameter or key of this
// name is a secret. Case does not matter, nor do characters other than letters
// and digits, nor words before the last, as in "-o password": a mistyped name, or
// a whole command line there, comes with a password all the same.
func isSecretName(name string) bool {
	words := strings.Fields(name)
	return isSecretWord(name) || len(words) > 1 && isSecretWord(words[len(words)-1])
}

func isSecretWord(name string) bool {
	name = strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, name)
	return slices.Contains([]string{
		"pass", "pass2", "password", "password2", "passwd", "passphrase", "passphrasepasswd", "ecryptfspasswd", "keypass",
		"secret", "secretkey", "secretaccesskey", "accesskey", "accountkey", "apikey", "privatekey", "clientsecret",
		"token", "accesstoken", "authtoken", "bearertoken", "sastoken", "userpassword", "proxypassword", "adminsecret", "usersecret",
	}, name)
}

// Option returns one mount option without its secret. All that follows the secret is
// left out too, since a comma may be part of it.
func Option(option string) string {
	for at := 0; at < len(option); {
		end := len(option)
		if comma := strings.IndexByte(option[at:], ','); comma >= 0 {
			end = at + comma
		}
		if kept := keptOf(option[at:end]); kept >= 0 {
			return option[:at+kept] + Masked
		}
		at = end + 1
	}
	return option
}

// keptOf returns how much of an option may be shown: up to its secret; -1: all.
func keptOf(option string) int {
	name, value, valued := strings.Cut(option, "=")
	switch {
	case !valued || value == "" || value == Masked:
		return -1
	case isSecretName(name):
		return len(name) + 1
	}
	// user=NAME%PASSWORD of mount.cifs, user=NAME:PASSWORD of curlftpfs.
	if slices.Contains([]string{"user", "username", "proxy_user"}, strings.TrimSpace(strings.ToLower(name))) {
		if at := strings.IndexAny(value, "%:"); at >= 0 && value[at+1:] != Masked {
			return len(name) + 1 + at + 1
		}
	}
	return -1
}

// IsSecret reports whether an option carries a secret.
func IsSecret(option string) bool { return Option(option) != option }

// Options returns a copy of options without secrets; nil stays nil.
func Options(options []string) []string {
	masked := slices.Clone(options)
	for i, o := range masked {
		masked[i] = Option(o)
	}
	return masked
}

// Source returns the source of a mount without what stands before the host in one like a URL, and
// without the secret of an option.
func Source(source string) string {
	return regexp.MustCompile(`//[^/@\s]*@`).ReplaceAllString(Option(source), "//"+Masked+"@")
}

// Parameters returns a copy of parameters without secrets; nil stays nil. Values that
// are JSON documents, as of annotations that keep a manifest, are looked into.
func Parameters(all map[string]string) map[string]string {
	if all == nil {
		return nil
	}
	masked := make(map[string]string, len(all))
	for name, value := range all {
		masked[name] = parameter(name, value)
	}
	return masked
}

func parameter(name, value string) string {
	if value != "" && isSecretName(name) {
		return Masked
	}
	if strings.HasPrefix(strings.TrimSpace(value), "{") {
		return within(value)
	}
	return Option(value)
}

// within masks a JSON document; a text that is none is left out as a whole where it
// may have a secret.
func within(text string) string {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var document any
	if decoder.Decode(&document) != nil {
		return Masked
	}
	if !Document(document) {
		return text
	}
	masked, err := json.Marshal(document)
	if err != nil {
		return Masked
	}
	return string(masked)
}

// Document masks the secrets in a decoded JSON or YAML document, in place, and
// reports whether there were some. Texts at any depth count: by the name that they
// have, or as mount options.
func Document(value any) (changed bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			text, isText := item.(string)
			if !isText {
				changed = Document(item) || changed
				continue
			}
			if masked := parameter(name, text); masked != text {
				v[name], changed = masked, true
			}
		}
	case []any:
		for i, item := range v {
			text, isText := item.(string)
			if !isText {
				changed = Document(item) || changed
				continue
			}
			if masked := Option(text); masked != text {
				v[i], changed = masked, true
			}
		}
	}
	return changed
}
