import java.io.FileInputStream;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;

/** Prints the subject of each certificate in these files as Kafka's default rule has it. */
class Names {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            try (FileInputStream stream = new FileInputStream(file)) {
                X509Certificate one = (X509Certificate)
                    CertificateFactory.getInstance("X.509").generateCertificate(stream);
                System.out.write((one.getSubjectX500Principal().getName() + "\n").getBytes("UTF-8"));
            }
        }
    }
}
