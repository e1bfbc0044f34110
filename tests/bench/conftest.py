"""The browser of tests/browser, for pages whose speed is measured."""

from tests.browser.conftest import browser as browser
