package gitserver

import (
	"net/http"
	"strings"
)

// Auth decides whether a request is let in. One that is not gets 401 and a Basic challenge.
type Auth func(r *http.Request) bool

// Basic lets in who shows this name and password.
func Basic(user, password string) Auth {
	return func(r *http.Request) bool {
		u, p, ok := r.BasicAuth()
		return ok && u == user && p == password
	}
}

// Token lets in who shows the token, as a bearer token or as the password of any name: the two ways that git hosts take.
func Token(token string) Auth {
	return func(r *http.Request) bool {
		if _, p, ok := r.BasicAuth(); ok {
			return p == token
		}
		scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		return strings.EqualFold(scheme, "Bearer") && value == token
	}
}
