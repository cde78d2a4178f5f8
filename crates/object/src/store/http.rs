//! The HTTP client of `object_store`, with a check that it lacks.
//!
//! That client takes any XML for a listing: a page of a proxy, or the error that some servers send with the status 200,
//! looks like a listing without objects. A listing that ends too early looks like damage to `fsck`, and like a free
//! volume to a writer.

use async_trait::async_trait;
use bytes::Bytes;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use super::classify::NotFromStore;

/// Connects clients whose listings are listings.
#[derive(Debug, Default)]
pub(super) struct Connector(ReqwestConnector);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Checked(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct Checked(HttpClient);

#[async_trait]
impl HttpService for Checked {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_listing = request.method().as_str() == "GET" && request.uri().query().is_some_and(is_listing);
        let response = self.0.execute(request).await?;
        if !is_listing || !response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.bytes().await?;
        if !is_whole(&body) {
            return Err(HttpError::new(HttpErrorKind::Decode, NotFromStore));
        }
        Ok(HttpResponse::from_parts(head, body.into()))
    }
}

/// Whether a query asks S3 and GCS (`list-type`) or Azure (`comp`) for a page of a listing.
fn is_listing(query: &str) -> bool {
    query.split('&').any(|part| part == "list-type=2" || part == "comp=list")
}

/// Whether this is a page of a listing that says where the next one begins, if there is one.
fn is_whole(body: &Bytes) -> bool {
    let has = |text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
    let is_page = has("<ListBucketResult") || has("<EnumerationResults");
    is_page && (!has("<IsTruncated>true<") || has("<NextContinuationToken>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_a_listing_is_told_from_other_answers() {
        let pages = [
            ("<ListBucketResult xmlns=\"http://s3\"><IsTruncated>false</IsTruncated></ListBucketResult>", true),
            ("<?xml version=\"1.0\"?>\n<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>", true),
            (
                "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>\
                 </ListBucketResult>",
                true,
            ),
            ("<ListBucketResult><IsTruncated>true</IsTruncated><NextMarker>x</NextMarker></ListBucketResult>", false),
            ("<Error><Code>InternalError</Code></Error>", false),
            ("<html><body>login first</body></html>", false),
            ("", false),
        ];
        for (page, expected) in pages {
            assert_eq!(is_whole(&Bytes::from_static(page.as_bytes())), expected, "{page}");
        }
    }
}
