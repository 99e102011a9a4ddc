package gitserver

import (
	"net/http"
	"strings"
)

// Auth decides whether a request is authorized. An unauthorized request gets 401 and a Basic challenge.
type Auth func(r *http.Request) bool

// Basic authorizes requests with this name and password.
func Basic(user, password string) Auth {
	return func(r *http.Request) bool {
		u, p, ok := r.BasicAuth()
		return ok && u == user && p == password
	}
}

// Token authorizes requests with the token, either as a bearer token or as the password of any name: git hosts accept
// both.
func Token(token string) Auth {
	return func(r *http.Request) bool {
		if _, p, ok := r.BasicAuth(); ok {
			return p == token
		}
		scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		return strings.EqualFold(scheme, "Bearer") && value == token
	}
}
